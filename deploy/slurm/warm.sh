#!/bin/sh
# warm.sh warm MNT BYTES READERS: reads into the page cache what lines `warm PATH` and `drop PATH` on standard input
# name: all names and attributes, and content up to so many BYTES, by so many READERS. warm.sh drop MNT READERS:
# has it leave the page cache. Runs with the rights of the user who named it; says on standard output what
# was done.
#
# What a path leads to is found out by going there: what is looked at afterwards is that folder, whatever
# becomes of the path.
set -eu
me=$0
mnt=${2:-}
# Files above this are read by several at a time, a piece each.
piece=67108864

# enter PATH: goes to it. $name is what to look at from there.
enter() {
    folder=$1
    name=.
    case $1/ in
    "$mnt"/*) ;;
    *) refuse "$1" "is not below $mnt" ;;
    esac
    if test -h "$1" && test ! -d "$1"; then refuse "$1" 'is a link to a file'; fi
    if test -f "$1"; then
        folder=${1%/*}
        name=./${1##*/}
    fi
    cd -P -- "$folder" 2>/dev/null || refuse "$1" "is not there, or user $(id -u) may not enter it"
    case $(pwd -P)/ in
    "$mnt"/*) ;;
    *) refuse "$1" "leads out of $mnt" ;;
    esac
    test "$(stat -c %d .)" = "$(stat -c %d "$mnt")" || refuse "$1" "leads to another filesystem"
    test -r "$name" || refuse "$1" "may not be read by user $(id -u)"
}

refuse() {
    echo "refused: $1 $2"
    exit 1
}

# Files below, but for names with an end of line in them: `SIZE PATH` a line.
files() {
    find "$name" -xdev -type f ! -path '*
*' -printf '%s %p\n' 2>/dev/null
}

# warm_one PATH LEFT: answers how many bytes are left of the limit, after what is said of it.
warm_one() {
    enter "$1"
    {
        files | awk -v left="$2" -v piece="$piece" -v path="$1" '
            {
                size = $1
                name = substr($0, length($1) + 2)
                count++
                all += size
                # All names are walked, whatever is read.
                if (size == 0 || left <= 0) next
                take = size < left ? size : left
                left -= take
                taken += take
                for (at = 0; at < take; at += piece)
                    printf "%.0f %.0f %s\n", at, take - at < piece ? take - at : piece, name
            }
            END {
                printf "warm: %s: %d files, %.0f of %.0f bytes\n", path, count, taken, all >"/dev/stderr"
                printf "%.0f\n", left >"/dev/stderr"
            }' 2>&3 | tr '\n' '\0' | xargs -0 -r -n 16 -P "$readers" sh "$me" read >/dev/null 2>&1 || :
    } 3>&1
}

# read_items ITEM...: each is `OFFSET LENGTH PATH`. What the file has become meanwhile is not followed, waited for, or
# read beyond that.
read_items() {
    for item; do
        rest=${item#* }
        dd if="${rest#* }" of=/dev/null bs=1M iflag=skip_bytes,count_bytes,nofollow,nonblock \
            skip="${item%% *}" count="${rest%% *}" status=none || :
    done
}

case $1 in
warm)
    left=$3
    readers=$4
    while read -r _ path; do
        said=$(warm_one "$path" "$left") || {
            echo "$said"
            continue
        }
        left=$(echo "$said" | tail -n 1)
        echo "$said" | sed '$d'
    done
    ;;
read)
    shift
    read_items "$@"
    ;;
drop)
    readers=$3
    while read -r _ path; do
        (
            enter "$path"
            files | sed 's/^[0-9]* //' | tr '\n' '\0' |
                xargs -0 -r -n 64 -P "$readers" sh "$me" forget >/dev/null 2>&1
        ) || :
    done
    ;;
forget)
    shift
    for file; do
        dd if="$file" iflag=nocache,nofollow,nonblock count=0 status=none || :
    done
    ;;
esac
