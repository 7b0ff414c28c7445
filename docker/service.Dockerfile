# A service of a framework that comes as wheels: reference, torch, tensorflow. docker-bake.hcl has the arguments of each.
#
#   BASE_IMAGE       any Debian or Ubuntu with the Python asked for, or with SYSTEM_PACKAGES that bring it
#   PYTHON           its interpreter
#   LOCK             file in docker/locks, with the hash of every package
#   FOLDER           folder below services/
#   EXTRA, EXTRA_INDEX  one more package, without its dependencies, from an index of its own (CPU builds of PyTorch)
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS base
ARG SYSTEM_PACKAGES=""
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends tini ${SYSTEM_PACKAGES} \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 crosstrain \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin crosstrain \
    && install -d -o 65532 -g 65532 -m 0700 /data

FROM base AS build
ARG PYTHON=python3
ARG LOCK
ARG EXTRA=""
ARG EXTRA_INDEX=""
RUN "${PYTHON}" -m venv /opt/crosstrain
COPY docker/locks/${LOCK}.txt /tmp/lock.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/crosstrain/bin/python -m pip install --require-hashes -r /tmp/lock.txt \
    && if [ -n "${EXTRA}" ]; then \
        /opt/crosstrain/bin/python -m pip install --no-deps ${EXTRA_INDEX:+--index-url "${EXTRA_INDEX}"} "${EXTRA}"; \
    fi
RUN /opt/crosstrain/bin/python -m pip list --format=json > /python.json

# A layer of its own, so that a change of the code leaves the layer of packages alone.
FROM build AS code
ARG FOLDER
COPY protos/python/ services/common/src/ services/reference/src/ services/${FOLDER}/src/ /opt/crosstrain/src/
# Compiled here: at run time the file system is read-only.
RUN /opt/crosstrain/bin/python -m compileall -q -j 0 /opt/crosstrain/src

# What is inside, as files: docker buildx bake sbom.
FROM base AS debian
RUN dpkg-query -W -f '${Package} ${Version}\n' > /debian.txt

FROM scratch AS sbom
COPY --from=build /python.json /
COPY --from=debian /debian.txt /

FROM base AS service
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG TITLE="Crosstrain service"
LABEL org.opencontainers.image.title="${TITLE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY LICENSE /opt/crosstrain-license/
COPY --from=build /opt/crosstrain /opt/crosstrain
COPY --from=code /opt/crosstrain/src /opt/crosstrain/src
ENV PATH=/opt/crosstrain/bin:$PATH \
    PYTHONPATH=/opt/crosstrain/src \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
# No VOLUME: a volume that was forgotten must stop the process, not become one that is lost with the container.
USER 65532:65532
EXPOSE 7441 9464
STOPSIGNAL SIGTERM
# tini reaps what a framework's own processes leave behind; there is no shell between it and the service.
ENTRYPOINT ["/usr/bin/tini", "--", "python", "-m", "crosstrain_service"]
# Seldom: a check takes 0.15 s of processor time, which a run that is measured would miss.
HEALTHCHECK --interval=30s --timeout=10s --start-period=300s --retries=3 \
    CMD ["python", "-m", "crosstrain_service.healthcheck", "127.0.0.1:7441"]
