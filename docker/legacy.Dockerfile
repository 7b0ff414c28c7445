# The service of Theano: Keras 2.3.1 on it and Lasagne 0.1, on Python 3.7. docker-bake.hcl has the arguments.
#
# On a GPU (GPU=1, untested) the base must have CUDA 10.2 and cuDNN 7 with their headers: cuDNN 7 is the newest that
# Theano 1.0.5 knows, and CUDA 10.2 the newest that cuDNN 7 was released for. These reach GPUs up to Turing.
ARG BASE_IMAGE=python:3.7-slim-bookworm

FROM ${BASE_IMAGE} AS base
# Theano compiles every graph when it is built, so a compiler and headers are needed at run time.
ARG SYSTEM_PACKAGES="g++"
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends tini ${SYSTEM_PACKAGES} \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 crosstrain \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin crosstrain \
    && install -d -o 65532 -g 65532 -m 0700 /data

FROM base AS build
ARG PYTHON=python3
ARG LOCK
RUN "${PYTHON}" -m venv /opt/crosstrain
COPY docker/locks/${LOCK}.txt /tmp/lock.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/crosstrain/bin/python -m pip install --require-hashes -r /tmp/lock.txt
# GPU, untested: libgpuarray and pygpu, the back end of Theano's device=cuda. 0.7.6 is their last release.
ARG GPU=""
ARG GPUARRAY_SOURCE=https://github.com/Theano/libgpuarray.git
RUN if [ -n "${GPU}" ]; then \
        apt-get update \
        && apt-get install -y --no-install-recommends ca-certificates cmake git make \
        && git clone --depth 1 --branch v0.7.6 "${GPUARRAY_SOURCE}" /tmp/gpuarray \
        && cmake -S /tmp/gpuarray -B /tmp/gpuarray/build -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/opt/crosstrain \
        && make -C /tmp/gpuarray/build install \
        && /opt/crosstrain/bin/python -m pip install --no-cache-dir "cython<3" mako==1.2.4 \
        && CPATH=/opt/crosstrain/include LIBRARY_PATH=/opt/crosstrain/lib \
            /opt/crosstrain/bin/python -m pip install --no-cache-dir --no-deps --no-build-isolation /tmp/gpuarray \
        && rm -rf /tmp/gpuarray /var/lib/apt/lists/*; \
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
# Compiled graphs are kept on the volume: without them each run would compile for minutes.
ENV PATH=/opt/crosstrain/bin:$PATH \
    PYTHONPATH=/opt/crosstrain/src \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LD_LIBRARY_PATH=/opt/crosstrain/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    HOME=/tmp \
    CROSSTRAIN_CACHE=/data/cache
# No VOLUME: a volume that was forgotten must stop the process, not become one that is lost with the container.
USER 65532:65532
EXPOSE 7441 9464
STOPSIGNAL SIGTERM
# tini reaps what a framework's own processes leave behind; there is no shell between it and the service.
ENTRYPOINT ["/usr/bin/tini", "--", "python", "-m", "crosstrain_service"]
# Seldom: a check takes 0.15 s of processor time, which a run that is measured would miss.
HEALTHCHECK --interval=30s --timeout=10s --start-period=300s --retries=3 \
    CMD ["python", "-m", "crosstrain_service.healthcheck", "127.0.0.1:7441"]
