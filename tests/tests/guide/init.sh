# init.sh BASE DIR NAME: is the first process of a machine of its own: the folder BASE with what is written
# in DIR above it, a file there as its drive. Whatever runs on it ends with this process.
set -eu
base=$1 dir=$2 name=$3
root=$dir/root
mkdir -p "$dir/upper" "$dir/work" "$root"
hostname "$name"
mount -t overlay overlay -o "lowerdir=$base,upperdir=$dir/upper,workdir=$dir/work" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/dev"
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/fuse "$root/dev/"
ln -s /proc/self/fd "$root/dev/fd"
mkdir -p "$root/dev/shm" "$root/dev/disk/by-id"
drive=$root/dev/disk/by-id/nvme-DRIVE-1
truncate -s 4G "$dir/drive-1"
: >"$drive"
mount --bind "$dir/drive-1" "$drive"
: >"$dir/up"
# It is the one that collects processes which nobody waits for.
exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh -c '
    while :; do
        sleep 60 &
        wait
    done'
