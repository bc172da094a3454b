# bare-root.sh ROOT NAME...: makes in the folder ROOT a machine that has what every Debian machine has (its
# essential packages), the packages NAME, and what these depend on: copied from this one, without its network.
set -eu
root=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Follows what packages that are installed here depend on. Of alternatives, the first that is here.
dpkg-query -W -f '${Package}|${Status}|${Essential}|${Pre-Depends}, ${Depends}\n' | awk -F'|' -v names="$*" '
    $2 == "install ok installed" { line = $0; sub(/^[^|]*\|[^|]*\|[^|]*\|/, "", line); needs[$1] = line }
    $2 == "install ok installed" && $3 == "yes" { wanted = wanted " " $1 }
    function take(name) {
        if (name in needs && !(name in taken)) { taken[name] = 1; queue[++last] = name; return 1 }
        return name in taken
    }
    END {
        count = split(names wanted, first, " ")
        for (i = 1; i <= count; i++) take(first[i])
        for (i = 1; i <= last; i++) {
            groups = split(needs[queue[i]], group, ",")
            for (g = 1; g <= groups; g++) {
                choices = split(group[g], choice, "|")
                for (c = 1; c <= choices; c++) {
                    gsub(/\([^)]*\)|\[[^]]*\]|:any|[[:space:]]/, "", choice[c])
                    if (take(choice[c])) break
                }
            }
        }
        for (name in taken) print name
    }' | sort >"$work/names"

# Their files, but for what nobody runs. A file that an admin has removed here is none of theirs.
xargs dpkg -L <"$work/names" | sort -u | sed -e '/^\/usr\/share\/\(doc\|man\|info\|locale\)\//d' -e 's|^/||' |
    while read -r file; do
        if test -e "/$file" || test -L "/$file"; then echo "$file"; fi
    done >"$work/files"
# Where /bin and its like are links to; what is unpacked below a link needs it to lead somewhere.
mkdir -p "$root/usr/bin" "$root/usr/sbin" "$root/usr/lib" "$root/usr/lib64" "$root/usr/lib32"
tar -C / --no-recursion -cf - -T "$work/files" | tar -C "$root" -xf -

# What dpkg knows of them.
dpkg=$root/var/lib/dpkg
mkdir -p "$dpkg/info" "$dpkg/updates" "$dpkg/triggers" "$root/proc" "$root/dev" "$root/run" "$root/tmp"
awk 'NR == FNR { wanted[$1] = 1; next } /^Package: / { keep = $2 in wanted } keep' \
    "$work/names" /var/lib/dpkg/status >"$dpkg/status"
: >"$dpkg/available"
while read -r name; do
    for file in /var/lib/dpkg/info/"$name".* /var/lib/dpkg/info/"$name":*; do
        if test -e "$file"; then cp "$file" "$dpkg/info/"; fi
    done
done <"$work/names"
cp /var/lib/dpkg/info/format "$dpkg/info/format"
cp -r /var/lib/dpkg/triggers/. "$dpkg/triggers/"
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
