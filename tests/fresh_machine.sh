#!/usr/bin/env bash
# Does the README work for a stranger? Runs its two commands in a fresh, minimal Debian 12 root (mmdebstrap, chroot), on
# a fresh clone of the last commit, and prints how long each took. Root only.
#
# usage: tests/fresh_machine.sh [--warm] [--keep]
#   --warm   then once more on a second clone in the same root, with the first one's caches
#   --keep   do not remove the root at the end
#
# The fresh root gets this machine's apt sources, certificates and apt / pip / proxy settings, and nothing else of it.
set -euo pipefail
cd "$(dirname "$0")/.."
repository="$PWD"

warm=0 keep=0
for argument in "$@"; do
  case "$argument" in
    --warm) warm=1 ;;
    --keep) keep=1 ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
((EUID == 0)) || { echo "error: a root file system can be made by root only" >&2; exit 1; }

# A mount namespace of our own: all mounts below end with this script, whatever happens.
if [[ -z "${BITSHARD_IN_NAMESPACE:-}" ]]; then
  export BITSHARD_IN_NAMESPACE=1
  exec unshare --mount --propagation private -- "$0" "$@"
fi
command -v mmdebstrap > /dev/null || apt-get install -y -qq --no-install-recommends mmdebstrap

place="${TMPDIR:-/var/tmp}"
free_gb="$(df --output=avail --block-size=1G "$place" | tail -n 1)"
((free_gb >= 20)) || {
  echo "error: $place has $((free_gb)) GB free, and a fresh root with its builds takes up to 20: set TMPDIR to a roomier place" >&2
  exit 1
}
base="$(mktemp -d "$place/bitshard-fresh.XXXXXX")"
root="$base/debian"
home=/srv/stranger
clean_up() {
  local mounted
  # The mounts first: what is removed must be ours.
  for mounted in run/netns dev/shm dev/pts dev sys proc wheels; do umount -l "$root/$mounted" 2> /dev/null || true; done
  if ((keep)); then echo "kept: $root"; else rm -rf --one-file-system "$base"; fi
}
trap clean_up EXIT

step() { printf '\n=== %s\n' "$*"; }

step "a fresh Debian 12 root"
started=$SECONDS
sources=()
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list; do
  [[ -s "$file" ]] && grep -qs debian "$file" && sources+=("$file")
done
mmdebstrap --quiet --variant=minbase --include=ca-certificates bookworm "$root" "${sources[@]}"
cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  if [[ -e "$file" ]]; then
    rm -f "$root$file"
    cp -L "$file" "$root$file"
  fi
done
if [[ -d ~/.config/pip ]]; then
  mkdir -p "$root$home/.config"
  cp -r ~/.config/pip "$root$home/.config/"
fi
mkdir -p "$root$home" "$root/wheels"
mount --rbind /proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"

# Only what reaches the package servers is taken over from this machine's environment.
environment=(HOME="$home" PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
while IFS='=' read -r -d '' name value; do
  case "$name" in
    http_proxy | https_proxy | no_proxy | HTTP_PROXY | HTTPS_PROXY | NO_PROXY | PIP_INDEX_URL | PIP_EXTRA_INDEX_URL | \
      PIP_CERT | PIP_TRUSTED_HOST | SSL_CERT_FILE | REQUESTS_CA_BUNDLE | PIP_DEFAULT_TIMEOUT)
      environment+=("$name=$value")
      ;;
    PIP_FIND_LINKS)
      if [[ -d "$value" ]]; then
        mount --bind -o ro "$value" "$root/wheels"
        value=/wheels
      fi
      environment+=("PIP_FIND_LINKS=$value")
      ;;
  esac
done < /proc/self/environ
echo "$((SECONDS - started)) s"

failures=0
# run_both CLONE TITLE: the README's two commands in a new clone.
run_both() {
  local clone="$1" title="$2" command
  step "$title: git clone"
  git -c safe.directory="$repository" clone --quiet --no-hardlinks "$repository" "$root$home/$clone"
  for command in "deploy/local/serve.sh --once" tests/run.sh; do
    step "$title: $command"
    started=$SECONDS
    # A clean environment, and no terminal: as in a container.
    if chroot "$root" /usr/bin/env -i "${environment[@]}" \
      /bin/bash -c "cd $home/$clone && $command" < /dev/null 2>&1 | tee "$base/log"; then
      results+=("$title: $command: ok, $((SECONDS - started)) s: $(tail -n 1 "$base/log")")
    else
      failures=$((failures + 1))
      results+=("$title: $command: FAILED after $((SECONDS - started)) s: $(tail -n 1 "$base/log")")
    fi
  done
  # The Bazel server would hold the folder that we remove.
  chroot "$root" /usr/bin/env -i "${environment[@]}" /bin/bash -c "cd $home/$clone && bazel shutdown" || true
}

results=()
run_both first "cold"
((warm)) && run_both second "with the caches"

step "summary"
printf '%s\n' "${results[@]}"
((failures == 0))
