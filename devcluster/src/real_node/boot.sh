# The first process of a real node, in a mount and a process namespace of its own: with it everything else of the node ends
# and every mount goes, however it ends. $1: the node's folder. $2: kubelet. Other arguments: those of kubelet.
set -eu
dir=$1
kubelet=$2
shift 2

# What kubelet, containerd and the network plugins write to fixed places stays in the namespace.
for place in /run /var/log /var/lib; do
    mount -t tmpfs -o mode=755 tmpfs "$place"
done

# Kernel settings that kubelet and the bridge plugin would change for the whole machine: they find what they want.
while IFS='=' read -r name value; do
    if [ -e "/proc/sys/$name" ]; then
        file=$dir/sysctl-$(echo "$name" | tr / -)
        echo "$value" > "$file"
        mount --bind "$file" "/proc/sys/$name"
    fi
done <<SETTINGS
vm/overcommit_memory=1
vm/panic_on_oom=0
kernel/panic=10
kernel/panic_on_oops=1
kernel/keys/root_maxkeys=1000000
kernel/keys/root_maxbytes=25000000
net/ipv4/ip_forward=1
SETTINGS

# Kubelet gives up after a second without the socket, which a busy machine may need longer for.
ended=$dir/containerd-ended
rm -f "$ended"
(
    containerd --config "$dir/containerd.toml" >> "$dir/logs/containerd.log" 2>&1 || true
    : > "$ended"
) &
until [ -S /run/containerd/containerd.sock ]; do
    if [ -e "$ended" ]; then
        tail -n 20 "$dir/logs/containerd.log"
        exit 1
    fi
    sleep 0.05
done

"$kubelet" "$@" &
# The shell collects processes that lost their parent while it waits.
wait $!
