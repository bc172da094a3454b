# Sourced by scenarios: a real NVMe-oF target in this kernel, as a rack of three boxes with two drives
# each. Box N is one subsystem on one port with an address of its own; its drives are RAM disks.
#   boxes TRANSPORT      makes the fabric and the boxes: tcp, rdma (soft-RoCE) or iwarp (soft-iWARP)
#   sever N, heal        loses every packet to box N, as a pulled cable does; heals all
#   off N, on N          switches the port of box N off, which its hosts notice at once, and on
#   address N, nqn N, uuid N DRIVE, port N

nvmet=/sys/kernel/config/nvmet
nqn() { echo "nqn.2025-01.test.weft:box$1"; }
uuid() { echo "00000000-0000-4000-8000-0000000000$1$2"; }
port() { echo $((4419 + $1)); }
address() { echo "10.9.$1.1"; }

boxes() {
    fabric=$1
    nft add table inet cut
    nft 'add chain inet cut input { type filter hook input priority 0; }'
    for box in 1 2 3; do
        ip link add "box$box" type dummy
        ip link set "box$box" mtu 9000 up
        ip address add "$(address $box)/24" dev "box$box"
        case $fabric in
        rdma) rdma link add "rxe$box" type rxe netdev "box$box" ;;
        iwarp) rdma link add "siw$box" type siw netdev "box$box" ;;
        esac
    done
    for box in 1 2 3; do
        box "$box"
    done
}

box() {
    subsystem=$nvmet/subsystems/$(nqn "$1")
    mkdir "$subsystem"
    echo 1 > "$subsystem/attr_allow_any_host"
    for drive in 1 2; do
        namespace=$subsystem/namespaces/$drive
        mkdir "$namespace"
        echo "/dev/ram$((($1 - 1) * 2 + drive - 1))" > "$namespace/device_path"
        uuid "$1" $drive > "$namespace/device_uuid"
        echo 1 > "$namespace/enable"
    done
    at=$nvmet/ports/$1
    mkdir "$at"
    case $fabric in tcp) echo tcp ;; *) echo rdma ;; esac > "$at/addr_trtype"
    echo ipv4 > "$at/addr_adrfam"
    address "$1" > "$at/addr_traddr"
    port "$1" > "$at/addr_trsvcid"
    on "$1"
}

# Not for soft-RoCE: packets between two ends of one rxe device pass no firewall.
sever() { nft add rule inet cut input ip daddr "$(address "$1")" drop; }
heal() { nft flush chain inet cut input; }

on() { ln -s "$nvmet/subsystems/$(nqn "$1")" "$nvmet/ports/$1/subsystems/$(nqn "$1")"; }
off() { rm "$nvmet/ports/$1/subsystems/$(nqn "$1")"; }
