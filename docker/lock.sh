#!/bin/sh
# Writes docker/locks/*.txt: the packages of the services' locks with their hashes, and those of the GPU builds.
# Needs uv and a package index. A test compares the versions with the services' locks.
set -eu
cd "$(dirname "$0")/.."
out=docker/locks

lock() { # name, version of Python, requirements and constraints
    name=$1 python=$2
    shift 2
    echo "$name"
    uv pip compile -q --generate-hashes --no-header --no-annotate --python-platform x86_64-unknown-linux-gnu \
        --python-version "$python" "$@" -o "$out/$name.txt"
}

retitled() { # title, file: the file with another first line
    echo "# $1"
    sed 1d "$2"
}

retitled "PyTorch for GPUs, as PyPI has it: CUDA and cuDNN come as wheels." services/torch/locks/torch.in \
    >$out/torch-cuda.in
{
    echo "# Everything that PyTorch and the service need, but PyTorch itself: its CPU build comes from an index of its own."
    grep -v "^torch==" services/torch/locks/torch.txt
} >$out/torch-cpu.in
for version in 2.12 2.21; do
    if [ $version = 2.12 ]; then
        title="TensorFlow 2.12 for GPUs: CUDA 11.8 and cuDNN 8.6 come with the base image."
        package="tensorflow"
    else
        title="TensorFlow for GPUs: CUDA and cuDNN come as wheels."
        package="tensorflow[and-cuda]"
    fi
    retitled "$title" services/tensorflow/locks/tensorflow-$version.in | sed "s/^tensorflow-cpu==/$package==/" \
        >$out/tensorflow-$version-cuda.in
done

lock coordinator 3.11 $out/coordinator.in
lock reference 3.11 services/reference/locks/reference.txt
lock torch-cpu 3.11 $out/torch-cpu.in
lock torch-cuda 3.11 $out/torch-cuda.in
lock tensorflow-2.21-cpu 3.11 services/tensorflow/locks/tensorflow-2.21.txt
lock tensorflow-2.21-cuda 3.11 $out/tensorflow-2.21-cuda.in
lock tensorflow-2.12-cpu 3.10 services/tensorflow/locks/tensorflow-2.12.txt
lock tensorflow-2.12-cuda 3.10 $out/tensorflow-2.12-cuda.in
lock keras_theano 3.7 services/keras_theano/locks/keras_theano.txt
lock caffe 3.11 services/caffe/locks/caffe.txt
