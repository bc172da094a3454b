#!/bin/sh
# Says where pjdfstest is, and builds it first if it is not there: the crate of that name, of one version
# and with the versions of its dependencies that it was published with. Kept outside of the clone.
set -eu
version=0.2.2
home="${XDG_CACHE_HOME:-$HOME/.cache}/weft/pjdfstest-$version"
mkdir -p "$home"
exec 9>"$home/lock"
flock 9
if ! test -x "$home/bin/pjdfstest"; then
    # What a build around this one has set is not for it.
    env -u CARGO_TARGET_DIR -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS \
        cargo install --quiet --root "$home" --target-dir "$home/build" --locked \
        --version "$version" pjdfstest >&2
    rm -rf "$home/build"
fi
echo "$home/bin/pjdfstest"
