# The coordinator, with the drivers of PostgreSQL and S3.
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
RUN "${PYTHON}" -m venv /opt/crosstrain
COPY docker/locks/coordinator.txt /tmp/lock.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/crosstrain/bin/python -m pip install --require-hashes -r /tmp/lock.txt
RUN /opt/crosstrain/bin/python -m pip list --format=json > /python.json

# A layer of its own, so that a change of the code leaves the layer of packages alone.
FROM build AS code
COPY protos/python/ services/common/src/ services/reference/src/ coordinator/src/ /opt/crosstrain/src/
# Compiled here: at run time the file system is read-only.
RUN /opt/crosstrain/bin/python -m compileall -q -j 0 /opt/crosstrain/src

# What is inside, as files: docker buildx bake sbom.
FROM base AS debian
RUN dpkg-query -W -f '${Package} ${Version}\n' > /debian.txt

FROM scratch AS sbom
COPY --from=build /python.json /
COPY --from=debian /debian.txt /

FROM base AS coordinator
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG TITLE="Crosstrain coordinator"
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
    HOME=/tmp \
    CROSSTRAIN_STATE_DIR=/data \
    CROSSTRAIN_LISTEN=0.0.0.0:7440 \
    CROSSTRAIN_METRICS_PORT=9464
# No VOLUME: a volume that was forgotten must stop the process, not become one that is lost with the container.
USER 65532:65532
EXPOSE 7440 9464
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tini", "--", "python", "-m", "crosstrain.api"]
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-m", "crosstrain_service.healthcheck", "127.0.0.1:7440"]
