#!/bin/sh
# Prints the base images of docker-bake.hcl by the digests they have now, as variables for a release's build:
#   env $(docker/pin-bases.sh) docker buildx bake -f docker/docker-bake.hcl
set -eu
sed -n 's/^variable "\([A-Z0-9]*_BASE\)" { default = "\(.*\)" }$/\1 \2/p' "$(dirname "$0")/docker-bake.hcl" |
    while read -r name image; do
        digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$image")
        echo "$name=$image@$digest"
    done
