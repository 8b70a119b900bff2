#!/usr/bin/env bash
# Runs a command in a small virtual machine that has RDMA devices (Soft-RoCE): for tests of
# what needs such a device, on hosts that have none.
#
#   scripts/rdma-vm.sh [options] -- COMMAND [ARGUMENT...]
#   scripts/rdma-vm.sh --prepare        only makes ready what it needs
#
# The machine sees the host's files, read-only (what it writes is in its memory, and gone
# afterwards): programs built on the host run in it as they are. COMMAND runs as root, in
# the same folder, with the same environment; its output and exit code are passed out.
#
#   --or-skip           where no machine can be had, says so in a line that begins with
#                       `skipped`, and exits with 0
#   --devices 1|2       1: rxe1 at 10.77.0.1. 2 (the default): rxe2 at 10.77.0.2, too; what
#                       they send to each other crosses a virtual cable
#   --loss PERCENT      of the frames on that cable
#   --dax FILE[:SIZE]   FILE (made if it is missing; 64M) is persistent memory: /dev/dax0.0.
#                       What is in it is kept in FILE
#   --memory MIB (1024)   --timeout SECONDS (300)   --verbose: the kernel's log
#
# Its own exit codes: 124, COMMAND took too long; 125, there was no machine, or it died.
# RDMA_VM_ACCEL=kvm|tcg chooses; without it KVM is tried once, and emulation takes its place
# where that does not boot. The kernel is Debian's, its package taken apart, not installed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
store=$root/target/rdma-vm
modules="virtio_pci virtio_console 9pnet_virtio 9p overlay crc32_generic rdma_rxe ib_uverbs dummy veth sch_netem
  nfit nd_pmem device_dax dax_pmem"

or_skip= only_prepare= devices=2 loss=0 dax= memory=1024 timeout_s=300 verbose=

fail() {
  echo "rdma-vm: $*" >&2
  exit 125
}

# There can be no machine here.
no_machine() {
  if [[ $or_skip ]]; then
    echo "skipped: no virtual machine with RDMA devices: $*"
    exit 0
  fi
  fail "$*"
}

# ---------------------------------------------------------------------- what it needs

need() {
  local program package
  for program in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio xz:xz-utils \
    ip:iproute2 rdma:iproute2 flock:util-linux dpkg-deb:dpkg; do
    package=${program#*:} program=${program%:*}
    command -v "$program" >/dev/null || no_machine "no $program: apt-get install $package"
  done
  [[ $(uname -m) = x86_64 ]] || no_machine "only for x86-64, and this is $(uname -m)"
  ! ldd "$(command -v busybox)" >/dev/null 2>&1 ||
    no_machine "busybox needs libraries: apt-get install busybox-static"
  compgen -G "/usr/lib/*-linux-gnu/libibverbs/librxe-*.so" >/dev/null ||
    no_machine "libibverbs has no driver for Soft-RoCE: apt-get install ibverbs-providers"
}

# The kernel without its compression, which an emulated machine would take seconds for.
unpack_kernel() {
  local image=$1 to=$2 setup offset length
  number() { od -An -tu"$2" -j"$1" -N"$2" "$image" | tr -d ' '; }
  setup=$(number 497 1) offset=$(number 584 4) length=$(number 588 4)
  tail -c +$(((setup + 1) * 512 + offset + 1)) "$image" | head -c $((length - 4)) >"$to.packed" || true
  case $(od -An -tx1 -N4 "$to.packed" | tr -d ' ') in
    fd377a58) xz -dc "$to.packed" >"$to" ;;
    28b52ffd)
      command -v zstd >/dev/null || no_machine "no zstd: apt-get install zstd"
      zstd -qdc "$to.packed" >"$to"
      ;;
    *) no_machine "the kernel $image is packed in a way that is not known here" ;;
  esac
  rm "$to.packed"
}

# Debian's kernel and the modules that are wanted, in the order in which they are loaded.
make_ready() {
  local package version folder=$store.new module wanted needs name order=
  package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: //p' | head -n 1)
  [[ $package ]] || no_machine "apt knows no linux-image-amd64: apt-get update (Debian's kernel is used)"
  version=${package#linux-image-}
  echo "rdma-vm: making ready $package" >&2
  rm -rf "$folder"
  mkdir -p "$folder/package" "$folder/modules"
  (cd "$folder/package" && apt-get -qq -o APT::Sandbox::User=root download "$package" >&2) ||
    no_machine "apt-get download $package failed"
  dpkg-deb -x "$folder/package"/*.deb "$folder/package"
  unpack_kernel "$folder/package/boot/vmlinuz-$version" "$folder/vmlinux"
  # Newer releases pack modules, too.
  find "$folder/package" -name '*.ko.xz' -exec xz -d {} +
  [[ -d $folder/package/lib ]] || ln -s usr/lib "$folder/package/lib"
  busybox depmod -b "$folder/package" "$version"
  folder=$folder/package/lib/modules/$version
  for wanted in $modules; do
    needs=$(sed -n "s#^\([^:]*/\)\?$wanted\.ko: *##p" "$folder/modules.dep")
    module=$(sed -n "s#^\(\([^:]*/\)\?$wanted\.ko\):.*#\1#p" "$folder/modules.dep")
    [[ $module ]] || no_machine "$package has no module $wanted"
    # What is needed first stands last.
    for module in $(tr ' ' '\n' <<<"$needs" | tac) "$module"; do
      name=${module##*/}
      [[ " $order " != *" $name "* ]] || continue
      order+=" $name"
      cp "$folder/$module" "$store.new/modules/"
    done
  done
  echo "$order" >"$store.new/modules/order"
  rm -rf "$store.new/package"
  echo "$version" >"$store.new/version"
  [[ ! -e $store/accel ]] || cp "$store/accel" "$store.new/accel"
  rm -rf "$store"
  mv "$store.new" "$store"
}

# ---------------------------------------------------------------------- inside

# The first program: modules, the host's files below a layer in memory.
write_init() {
  cat <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc /sys /dev /r/host /r/layer /new
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev 2>/dev/null
if $b grep -q rdma-vm-probe /proc/cmdline; then
  echo rdma-vm-is-up
  $b poweroff -f
fi
for m in $($b cat /modules/order); do $b insmod /modules/$m; done
o=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o $o,cache=loose,ro host /r/host
$b mount -t tmpfs -o mode=755 tmpfs /r/layer
$b mkdir /r/layer/up /r/layer/work
$b mount -t overlay overlay -o lowerdir=/r/host,upperdir=/r/layer/up,workdir=/r/layer/work /new
for d in proc sys dev; do $b mkdir -p /new/$d; $b mount --move /$d /new/$d; done
$b mkdir -p /new/run /new/dev/shm /new/dev/pts
for d in run dev/shm; do $b mount -t tmpfs -o mode=1777 tmpfs /new/$d; done
$b mount -t devpts devpts /new/dev/pts
$b mkdir -p /new/run/vm/control
$b cp /bin/busybox /main /new/run/vm/
$b mount -t 9p -o $o,cache=none control /new/run/vm/control
exec $b switch_root /new /bin/sh /run/vm/main
INIT
}

# The second one, by the host's own programs.
write_main() {
  cat <<'MAIN'
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec </dev/null
b=/run/vm/busybox control=/run/vm/control
end() { echo "$1" >$control/code; $b sync; $b poweroff -f; sleep 99; }
fail() { echo "rdma-vm: inside: $*"; end 125; }
. $control/settings
hostname rdma-vm
ulimit -l unlimited
ip link set lo up
sysctl() { echo "$2" >/proc/sys/net/ipv4/conf/$1; }
device() { # NUMBER
  # Room for packets of 4096 bytes and their heads.
  ip link set rdma$1 mtu 4200 up && ip addr add 10.77.0.$1/24 dev rdma$1 || fail "link rdma$1"
  rdma link add rxe$1 type rxe netdev rdma$1 || fail "rdma link add rxe$1"
}
if [ $DEVICES = 1 ]; then
  ip link add rdma1 type dummy || fail dummy
  device 1
else
  ip link add rdma1 type veth peer name rdma2 || fail veth
  sysctl all/rp_filter 0
  sysctl default/rp_filter 0
  for n in 1 2; do
    o=$((3 - n))
    for of in "accept_local 1" "rp_filter 0" "arp_ignore 1" "arp_announce 2"; do sysctl rdma$n/$of; done
    device $n
    [ $LOSS = 0 ] || tc qdisc add dev rdma$n root netem limit 10000 loss $LOSS% || fail netem
    # What goes from one to the other leaves by its cable, though both are this machine's.
    ip route add 10.77.0.$o dev rdma$n src 10.77.0.$n table 10$n
    ip rule add pref 1$n iif lo from 10.77.0.$n to 10.77.0.$o lookup 10$n
  done
  ip rule add pref 20 lookup local
  ip rule del pref 0
fi
# An address of RDMA comes a moment after that of the link.
n=0
for d in /sys/class/infiniband/rxe*; do
  until cat $d/ports/1/gids/* 2>/dev/null | grep -q ':ffff:0a4d:'; do
    n=$((n + 1)); [ $n -lt 200 ] || fail "no address of RDMA"
    $b usleep 20000
  done
done
if [ "$DAX" ]; then
  # A bare module is "raw"; what programs map is a namespace of its own, as of
  # `ndctl create-namespace -m devdax`.
  bus=/sys/bus/nd/devices
  n=0
  until [ -e $bus/namespace0.0/mode ]; do
    n=$((n + 1)); [ $n -lt 200 ] || fail "no persistent memory"
    $b usleep 20000
  done
  seed=$(cat $bus/region0/dax_seed)
  echo namespace0.0 >/sys/bus/nd/drivers/nd_pmem/unbind 2>/dev/null
  if [ "$(cat $bus/$seed/namespace 2>/dev/null)" = "" ]; then
    echo ram >$bus/$seed/mode
    cat /proc/sys/kernel/random/uuid >$bus/$seed/uuid
    echo 2097152 >$bus/$seed/align
    echo namespace0.0 >$bus/$seed/namespace
  fi
  echo $seed >/sys/bus/nd/drivers/dax_pmem/bind || fail "no DAX device of the persistent memory"
  n=0
  until [ -e /dev/dax0.0 ]; do
    n=$((n + 1)); [ $n -lt 200 ] || fail "no /dev/dax0.0"
    $b usleep 20000
  done
fi
n=0
until [ -e "$(echo /dev/vport*p2)" ]; do
  n=$((n + 1)); [ $n -lt 250 ] || fail "no way to pass output out"
  $b usleep 20000
done
/bin/bash $control/command >$(echo /dev/vport*p1) 2>$(echo /dev/vport*p2)
end $?
MAIN
}

write_initrd() { # FOLDER
  mkdir -p "$1/i/bin" "$1/i/dev"
  cp "$(command -v busybox)" "$1/i/bin/busybox"
  cp -r "$store/modules" "$1/i/modules"
  write_init >"$1/i/init"
  write_main >"$1/i/main"
  chmod +x "$1/i/init"
  (cd "$1/i" && find . | cpio -o -H newc --quiet) >"$1/initrd"
  rm -rf "$1/i"
}

# ---------------------------------------------------------------------- the machine

# machine ACCEL SECONDS ADDED-TO-THE-COMMAND-LINE [OPTION...]
machine() {
  local accel=$1 seconds=$2 line=$3 options
  shift 3
  case $accel in
    kvm) options=(-accel kvm -cpu "host") ;;
    # All that can be emulated; page tables of five levels would only be slower.
    tcg) options=(-accel "tcg,thread=multi" -cpu "max,la57=off") ;;
    *) fail "RDMA_VM_ACCEL may be kvm or tcg, not $accel" ;;
  esac
  timeout --foreground -k 5 "$seconds" qemu-system-x86_64 -nodefaults -no-user-config -display none \
    -no-reboot "${options[@]}" -smp 2 -kernel "$store/vmlinux" -initrd "$folder/initrd" -append \
    "console=ttyS0 panic=-1 nokaslr mitigations=off random.trust_cpu=on audit=0 tsc=reliable \
no_timer_check rcupdate.rcu_expedited=1 $line" "$@" </dev/null
}

# Whether KVM boots this kernel is found out once: there are hosts whose KVM runs others only.
choose_accel() {
  if [[ ${RDMA_VM_ACCEL:-} ]]; then
    echo "$RDMA_VM_ACCEL"
    return
  fi
  if [[ ! -e $store/accel ]]; then
    echo tcg >"$store/accel"
    if [[ -r /dev/kvm && -w /dev/kvm ]] && machine kvm 15 rdma-vm-probe -M q35 -m 256 \
      -serial "file:$folder/probe" 2>/dev/null; grep -aq rdma-vm-is-up "$folder/probe" 2>/dev/null; then
      echo kvm >"$store/accel"
    else
      echo "rdma-vm: no KVM that boots this kernel here: the machine is emulated" >&2
    fi
  fi
  cat "$store/accel"
}

run() {
  local accel options=() maximum=$memory pids code
  accel=$(choose_accel)
  mkdir "$folder/control"
  mkfifo "$folder/out" "$folder/err"
  printf '%s=%q\n' DEVICES "$devices" LOSS "$loss" DAX "$dax" >"$folder/control/settings"
  {
    export -p
    echo "export RDMA_VM=$accel TMPDIR=/tmp"
    printf 'cd %q\nexec' "$PWD"
    printf ' %q' "$@"
    echo
  } >"$folder/control/command"
  local type=q35,smm=off,hpet=off
  if [[ $dax ]]; then
    local file=${dax%%:*} size=64M
    [[ $dax != *:* ]] || size=${dax##*:}
    [[ -e $file ]] || truncate -s "$size" "$file"
    size=$(stat -c %s "$file")
    type+=,nvdimm=on
    maximum="$memory,slots=2,maxmem=$((memory + size / 1048576 + 1024))M"
    options+=(-object "memory-backend-file,id=dax,mem-path=$file,size=$size,share=on"
      -device nvdimm,memdev=dax)
  fi
  cat "$folder/out" &
  pids=$!
  cat "$folder/err" >&2 &
  pids+=" $!"
  : >"$folder/log"
  if [[ $verbose ]]; then
    tail -f "$folder/log" >&2 &
    followers=$!
  fi
  code=0
  machine "$accel" "$timeout_s" "" -M "$type" -m "$maximum" -serial "file:$folder/log" \
    -virtfs "local,path=/,mount_tag=host,security_model=none,multidevs=remap,readonly=on" \
    -virtfs "local,path=$folder/control,mount_tag=control,security_model=none" \
    -device virtio-serial-pci \
    -chardev "file,id=out,path=$folder/out" -device virtserialport,chardev=out,nr=1 \
    -chardev "file,id=err,path=$folder/err" -device virtserialport,chardev=err,nr=2 \
    "${options[@]}" 2>"$folder/qemu" &
  running=$!
  wait "$running" || code=$?
  running=
  # If it never opened them, their readers see an end all the same.
  for pipe in out err; do (exec 3<>"$folder/$pipe"); done
  # shellcheck disable=SC2086
  wait $pids || true
  if [[ -s $folder/control/code ]]; then
    code=$(<"$folder/control/code")
    [[ $code != 125 ]] || grep -a "rdma-vm:" "$folder/log" >&2 || true
    exit "$code"
  fi
  if ((code == 124 || code == 137)); then
    echo "rdma-vm: not done after $timeout_s s" >&2
    exit 124
  fi
  cat "$folder/qemu" >&2
  tail -n 25 "$folder/log" >&2
  fail "the machine died (qemu's exit code $code)"
}

clean_up() {
  # Who is told to end waits for nothing that the machine does.
  [[ -z ${running:-} ]] || { kill "$running" && wait "$running"; } 2>/dev/null || true
  [[ -z ${followers:-} ]] || kill "$followers" 2>/dev/null || true
  rm -rf "$folder"
}

while (($#)); do
  case $1 in
    --devices | --loss | --dax | --memory | --timeout)
      (($# > 1)) || { echo "rdma-vm: $1 needs a value (--help)" >&2; exit 2; }
      ;;&
    --) shift; break ;;
    --or-skip) or_skip=1 ;;
    --prepare) only_prepare=1 ;;
    --verbose) verbose=1 ;;
    --devices) devices=$2; shift ;;
    --loss) loss=$2; shift ;;
    --dax) dax=$2; shift ;;
    --memory) memory=$2; shift ;;
    --timeout) timeout_s=$2; shift ;;
    -h | --help)
      sed -n '2,/^set -e/{/^set -e/!s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    *)
      echo "rdma-vm: no option is called $1 (--help)" >&2
      exit 2
      ;;
  esac
  shift
done
[[ $only_prepare ]] || (($#)) || { echo "rdma-vm: no command (--help)" >&2; exit 2; }

need
mkdir -p "$(dirname "$store")"
exec 9>"$store.lock"
flock 9
folder=$(mktemp -d)
trap clean_up EXIT
trap 'exit 130' INT TERM
[[ -e $store/version ]] || make_ready
write_initrd "$folder"
choose_accel >/dev/null
exec 9>&-
[[ ! $only_prepare ]] || exit 0
run "$@"
