#!/usr/bin/env bash
# Run the README's commands in a fresh Debian: scripts/debian_root.sh FOLDER [COMMAND...]
#
# debootstrap makes a Debian 13 in FOLDER (a Debian 12 with SUITE=bookworm), apt installs there what
# docs/installation.md names, and the last commit of this repository is put there. Each COMMAND is run
# in it, "make demo" and "make test" if none is given. A FOLDER that is there is used again. It needs
# root, debootstrap and 15 GB.
set -euo pipefail

root=$(realpath -m "${1:?usage: scripts/debian_root.sh FOLDER [COMMAND...]}")
shift
[ $# -gt 0 ] || set -- "make demo" "make test"
packages="git make python3-venv libegl1 libgl1 libglib2.0-0"
[ "${SUITE:=trixie}" != bookworm ] || packages+=" gcc python3-dev"
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
checkout=$root/trimtab

if [ ! -e "$checkout" ]; then
    debootstrap --variant=minbase --include=ca-certificates "$SUITE" "$root" >&2
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" # also those that this machine trusts
    chroot "$root" apt-get install --yes --no-install-recommends $packages >&2
    git init --quiet "$checkout"
fi
git -C "$checkout" fetch --quiet "$here" HEAD
git -C "$checkout" reset --quiet --hard FETCH_HEAD

# The mounts are seen by the command alone, and go with it.
inside='mount -t proc proc "$0/proc"; mount -t sysfs sys "$0/sys"; mount --rbind /dev "$0/dev"
    exec chroot "$0" /usr/bin/env -i HOME=/home PATH=/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 \
        PIP_QUIET=1 ${PIP_INDEX_URL:+"PIP_INDEX_URL=$PIP_INDEX_URL"} bash -c "cd /trimtab && $1"'
chroot "$root" bash -c '. /etc/os-release; echo "$PRETTY_NAME, $(python3 --version)"'
for command in "$@"; do
    echo "== $command"
    status=0
    started=$SECONDS
    unshare --mount --pid --fork --kill-child bash -c "$inside" "$root" "$command" 2>&1 || status=$?
    echo "== $command: ended with code $status after $(((SECONDS - started) / 60)) minutes"
done
