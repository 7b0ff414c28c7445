"""Whether runs computed the same function: certificate, cause, free run, verdict.

``numerics``     the reference's arithmetic with derived rounding bounds
``certificate``  recorded steps checked piece by piece against it
``causes``       what explains a check that fails: one table of conventions
``freerun``      where free runs part, and whether rounding explains it
"""
