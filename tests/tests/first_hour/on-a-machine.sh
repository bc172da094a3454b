# on-a-machine.sh PACKAGE: what an admin does with the package on a machine that has nothing else, as root. Ends
# with 0 if all is as it has to be. Whatever runs is ended by who started this.
set -eu
package=$1
dir=/var/tmp/cluster

check() {
    "$@" || {
        echo "on-a-machine: not so: $*" >&2
        exit 1
    }
}

# What `weft dev status` has under a name.
said() {
    weft dev status --dir "$dir" --output json | sed -n "/\"$1\"/{s/.*: \"*//;s/\"*,*\$//;p}"
}

dpkg -i "$package"
check test -z "$(dpkg --audit weft)"
check test -z "$(dpkg -V weft)"
check weft --version
check test "$(stat -c %a /etc/weft/tls)" = 700
check test -d /var/lib/weft
check test /sbin/mount.weft -ef /usr/bin/weft

mkdir -p /mnt/first /mnt/second
weft dev start --dir "$dir" --mount /mnt/first
echo content >/mnt/first/file
mount -t weft "$(said cluster):/" /mnt/second
check test "$(cat /mnt/second/file)" = content

# An upgrade touches nothing that runs, and what was changed in the configuration stays.
echo '# changed' >>/etc/weft/storaged.toml
before=$(said pid)
exec 3>>/mnt/first/file
dpkg -i "$package" >/tmp/said
check grep -q packages.md /tmp/said
check test "$before" = "$(said pid)"
echo more >&3
exec 3>&-
check test "$(wc -l </mnt/second/file)" = 2
check grep -q '^# changed' /etc/weft/storaged.toml

# What is in use is not removed.
! dpkg -r weft 2>/tmp/said || check false
check grep -q 'weft dev stop' /tmp/said
check weft --version
umount /mnt/second
weft dev stop --dir "$dir"
mkdir /var/lib/weft/metadata-1
: >/var/lib/weft/metadata-1/data
: >/etc/weft/metadata-1.toml
dpkg -r weft
check test ! -e /usr/bin/weft
check test -e /etc/weft/storaged.toml
: >/etc/weft/tls/drive.key
dpkg -P weft
check test "$(cd /etc/weft && echo *)" = tls
check test -e /etc/weft/tls/drive.key
check test -e /var/lib/weft/metadata-1/data

# Nor does anything stay that was made by the package alone.
rm -r /etc/weft /var/lib/weft
dpkg -i "$package" >/tmp/said
dpkg -P weft
check test ! -e /etc/weft
check test ! -e /var/lib/weft
