# All images: docker buildx bake -f docker/docker-bake.hcl [cpu|cuda|TARGET], from the top of the checkout.
#
# Tags are versions of frameworks, "-cpu" or "-cuda". A base is any image with the named Python; *_BASE replaces it:
#   PYTHON311_BASE=registry.example.org/python:3.11 docker buildx bake -f docker/docker-bake.hcl cpu
# For a release pin every base by its digest: docker/pin-bases.sh prints the variables with the digests of today.

variable "VERSION" { default = "0.1.0" }
variable "REVISION" { default = "unknown" }
variable "PREFIX" { default = "crosstrain" }

variable "PYTHON311_BASE" { default = "python:3.11-slim-bookworm" }
variable "PYTHON310_BASE" { default = "python:3.10-slim-bookworm" }
variable "PYTHON37_BASE" { default = "python:3.7-slim-bookworm" }
variable "DEBIAN12_BASE" { default = "debian:bookworm-slim" }
# TensorFlow 2.12 was built for CUDA 11.8 and cuDNN 8.6, and does not bring them.
variable "CUDA118_BASE" { default = "nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04" }
# Theano 1.0.5 knows cuDNN up to 7, which was last released for CUDA 10.2.
variable "CUDA102_BASE" { default = "nvidia/cuda:10.2-cudnn7-devel-ubuntu18.04" }
# Index with the CPU builds of PyTorch: PyPI has those for CUDA only.
variable "TORCH_CPU_INDEX" { default = "https://download.pytorch.org/whl/cpu" }
# ATTEST=1 attaches SBOMs and provenance for a release. That needs a builder of its own (docker buildx create) or
# Docker's containerd image store; Docker's default builder refuses it.
variable "ATTEST" { default = "" }

group "default" { targets = ["cpu"] }
group "cpu" {
  targets = ["coordinator", "reference", "torch-cpu", "tensorflow-cpu", "keras-theano-cpu", "caffe-cpu"]
}
# Built by nobody yet: no machine with a GPU and a registry was at hand.
group "cuda" { targets = ["torch-cuda", "tensorflow-cuda", "keras-theano-cuda", "caffe-cuda"] }

target "_common" {
  context = "."
  args    = { VERSION = VERSION, REVISION = REVISION }
  attest  = ATTEST == "" ? [] : ["type=sbom", "type=provenance,mode=max"]
}

target "coordinator" {
  inherits   = ["_common"]
  dockerfile = "docker/coordinator.Dockerfile"
  target     = "coordinator"
  args       = { BASE_IMAGE = PYTHON311_BASE }
  tags       = ["${PREFIX}/coordinator:${VERSION}"]
}

target "_service" {
  inherits   = ["_common"]
  dockerfile = "docker/service.Dockerfile"
  target     = "service"
}

target "reference" {
  inherits = ["_service"]
  args = {
    BASE_IMAGE = PYTHON311_BASE, LOCK = "reference", FOLDER = "reference", TITLE = "Crosstrain reference service"
  }
  tags = ["${PREFIX}/reference:1-cpu"]
}

target "torch" {
  name     = "torch-${kind}"
  inherits = ["_service"]
  matrix   = { kind = ["cpu", "cuda"] }
  args = {
    BASE_IMAGE  = PYTHON311_BASE
    LOCK        = "torch-${kind}"
    FOLDER      = "torch"
    TITLE       = "Crosstrain PyTorch service"
    EXTRA       = equal(kind, "cpu") ? "torch==2.13.0" : ""
    EXTRA_INDEX = TORCH_CPU_INDEX
  }
  tags = ["${PREFIX}/torch:2.13-${kind}"]
}

# Two versions of one framework from one Dockerfile; the older one has an image name of its own, so that both can be
# swapped independently (docs/deployment.md).
target "tensorflow" {
  name     = "tensorflow-${replace(item.version, ".", "-")}-${item.kind}"
  inherits = ["_service"]
  matrix = {
    item = [
      { version = "2.21", kind = "cpu", image = "tensorflow", base = PYTHON311_BASE, packages = "" },
      { version = "2.21", kind = "cuda", image = "tensorflow", base = PYTHON311_BASE, packages = "" },
      { version = "2.12", kind = "cpu", image = "tensorflow-2.12", base = PYTHON310_BASE, packages = "" },
      {
        version = "2.12", kind = "cuda", image = "tensorflow-2.12", base = CUDA118_BASE,
        packages = "python3 python3-venv"
      },
    ]
  }
  args = {
    BASE_IMAGE      = item.base
    SYSTEM_PACKAGES = item.packages
    LOCK            = "tensorflow-${item.version}-${item.kind}"
    FOLDER          = "tensorflow"
    TITLE           = "Crosstrain TensorFlow ${item.version} service"
  }
  tags = ["${PREFIX}/${item.image}:${item.version}-${item.kind}"]
}
group "tensorflow-cpu" { targets = ["tensorflow-2-21-cpu", "tensorflow-2-12-cpu"] }
group "tensorflow-cuda" { targets = ["tensorflow-2-21-cuda", "tensorflow-2-12-cuda"] }

target "keras-theano" {
  name       = "keras-theano-${item.kind}"
  inherits   = ["_common"]
  dockerfile = "docker/legacy.Dockerfile"
  target     = "service"
  matrix = {
    item = [
      { kind = "cpu", base = PYTHON37_BASE, python = "python3", packages = "g++", gpu = "" },
      {
        kind     = "cuda", base = CUDA102_BASE, python = "python3.7", gpu = "1",
        packages = "g++ python3.7 python3.7-dev python3.7-venv"
      },
    ]
  }
  args = {
    BASE_IMAGE      = item.base
    PYTHON          = item.python
    SYSTEM_PACKAGES = item.packages
    GPU             = item.gpu
    LOCK            = "keras_theano"
    FOLDER          = "keras_theano"
    TITLE           = "Crosstrain service of Keras on Theano and Lasagne"
  }
  tags = ["${PREFIX}/keras-theano:2.3-${item.kind}"]
}

target "caffe" {
  name       = "caffe-${item.kind}"
  inherits   = ["_common"]
  dockerfile = "docker/caffe.Dockerfile"
  target     = "service"
  matrix = {
    item = [
      { kind = "cpu", cuda = "OFF", packages = "", more = "", nccl = "" },
      # Debian's own CUDA 11.8; the base needs Debian's non-free archive among its sources.
      {
        kind = "cuda", cuda = "ON", packages = "nvidia-cuda-toolkit",
        more = "libcublas11 libcudart11.0 libcurand10", nccl = "caffe-nccl"
      },
    ]
  }
  args = {
    BASE_IMAGE     = DEBIAN12_BASE
    MORE_PACKAGES  = item.more
    BUILD_PACKAGES = item.packages
    CUDA           = item.cuda
    NCCL_LOCK      = item.nccl
    TITLE          = "Crosstrain Caffe service"
  }
  tags = ["${PREFIX}/caffe:1.0-${item.kind}"]
}

# What is inside the images, as lists of packages in files: docker buildx bake -f docker/docker-bake.hcl sbom.
target "sbom" {
  name     = "sbom-${replace(item, ".", "-")}"
  inherits = [item]
  matrix = {
    item = ["coordinator", "reference", "torch-cpu", "tensorflow-2-21-cpu", "tensorflow-2-12-cpu", "keras-theano-cpu",
      "caffe-cpu"]
  }
  target = "sbom"
  attest = []
  tags   = []
  output = ["type=local,dest=dist/sbom/${item}"]
}
