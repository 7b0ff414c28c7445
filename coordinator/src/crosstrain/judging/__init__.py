"""Judges jobs from what is stored of them, in a process of its own beside the coordinator.

``pool``       the coordinator's side: worker processes that are started on demand, and ended when idle
``worker``     the process: one task after the other
``reading``    runs, traces and recorded steps out of the job store and the artifact store
``certifying`` the checks of one probe, kept as a small artifact (``stored``)
``following``  which further runs a job's verdict needs
``gathering``  all evidence about a job
``pairing``    the same about two runs of any jobs
``documents``  the verdict document, stored
"""
