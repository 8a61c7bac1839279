#!/bin/sh
# deps-vm.sh: install what deps.sh installs, and what the lab's virtual machine needs.
#   qemu-system-x86   the machine
#   e2fsprogs         its disk (mke2fs)
exec "$(dirname "$0")/deps.sh" qemu-system-x86 e2fsprogs
