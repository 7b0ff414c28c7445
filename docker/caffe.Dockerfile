# The service of Caffe, compiled from source on Debian 12: its Boost.Python is for Python 3.11 alone.
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BASE_IMAGE} AS base
ARG SYSTEM_PACKAGES="python3 libboost-filesystem1.74.0 libboost-python1.74.0 libboost-thread1.74.0 libgflags2.2 libgoogle-glog0v6 libhdf5-103-1 libhdf5-hl-100 libopenblas0-pthread libprotobuf32"
ARG MORE_PACKAGES=""
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends tini ${SYSTEM_PACKAGES} ${MORE_PACKAGES} \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 crosstrain \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin crosstrain \
    && install -d -o 65532 -g 65532 -m 0700 /data

FROM base AS build
# More packages, for example a CUDA toolkit from Debian's non-free archive.
ARG BUILD_PACKAGES=""
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates cmake g++ libboost-filesystem-dev libboost-python-dev libboost-system-dev libboost-thread-dev \
        libgflags-dev libgoogle-glog-dev libhdf5-dev libopenblas-dev libprotobuf-dev ninja-build protobuf-compiler \
        python3-dev python3-venv ${BUILD_PACKAGES} \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/crosstrain
COPY docker/locks/caffe.txt /tmp/lock.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/crosstrain/bin/python -m pip install --require-hashes -r /tmp/lock.txt
# Caffe itself, from the source distribution that services/caffe/build/source.txt names and hashes.
# CUDA=ON and NCCL are untested, CUDNN=ON needs cuDNN 7: later versions lack calls that Caffe makes.
ARG CUDA=OFF
ARG CUDNN=OFF
# A lock file of docker/locks with NVIDIA's wheel of NCCL; without one Caffe is built without NCCL.
ARG NCCL_LOCK=""
COPY docker/locks/ /tmp/locks/
RUN --mount=type=cache,target=/root/.cache/pip \
    if [ -n "${NCCL_LOCK}" ]; then \
        /opt/crosstrain/bin/python -m pip install --require-hashes --no-deps -r "/tmp/locks/${NCCL_LOCK}.txt"; \
    fi
COPY services/caffe/build/ /tmp/caffe/
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/crosstrain/bin/python -m pip install --no-deps \
        --config-settings=cmake.define.CROSSTRAIN_CAFFE_CUDA="${CUDA}" \
        --config-settings=cmake.define.CROSSTRAIN_CAFFE_CUDNN="${CUDNN}" \
        --config-settings=cmake.define.CROSSTRAIN_CAFFE_NCCL="${NCCL_LOCK:+ON}" \
        --config-settings=cmake.define.CROSSTRAIN_CAFFE_NCCL_ROOT="$(echo /opt/crosstrain/lib/python3*/site-packages)/nvidia/nccl" \
        /tmp/caffe
RUN /opt/crosstrain/bin/python -m pip list --format=json > /python.json

# A layer of its own, so that a change of the code leaves the layer of packages alone.
FROM build AS code
COPY protos/python/ services/common/src/ services/reference/src/ services/caffe/src/ /opt/crosstrain/src/
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
