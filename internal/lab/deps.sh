#!/bin/sh
# deps.sh [PACKAGE...]: install what the lab and the image tests need, and these, with apt. Quick when all is there. Needs
# root only to install.
set -eu

# Packages and what they are for:
#   mmdebstrap                      the hosts' root file system
#   iproute2 openssh-client         the hosts' network, their keys and logins
#   genisoimage xorriso             making ISO images (genisoimage also holds isoinfo)
#   libarchive-tools fuseiso        bsdtar, which reads them, and a mount of them that needs no kernel support
#   openssh-server                  a real sshd to look at nodes through
#   nginx-light                     a real web server to read images from
#   systemd                         systemd-analyze, which checks the units
#   groff-base                      checks the manual pages
#   gcc libc6-dev                   the race detector
packages="mmdebstrap iproute2 openssh-client genisoimage xorriso libarchive-tools fuseiso openssh-server nginx-light systemd groff-base gcc libc6-dev ca-certificates $*"

missing=
for p in $packages; do
	case $(dpkg-query -W -f '${Status}' "$p" 2>/dev/null) in
	"install ok installed") ;;
	*) missing="$missing $p" ;;
	esac
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
	echo "deps.sh: not root, going on without:$missing" >&2
	exit 0 # what needs one of them says so itself
fi
echo "deps.sh: installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -o DPkg::Lock::Timeout=300 -qq "$@"; }
# The lists may be absent (a fresh machine) or stale (the version they name is gone from the mirror): one update, one retry.
# shellcheck disable=SC2086 # a list of words
install() { apt -y --no-install-recommends install $missing >/dev/null; }
install 2>/dev/null || { apt update && install; }
