// Package vmlab gives tests a real virtual machine: Debian with its cloud kernel under qemu, with the IDE drives that
// CloudStack gives its VMs on KVM, an empty one for the Kubernetes ISO and one with cloud-init's seed. It shows what hosts
// in namespaces ([cks-etcd/internal/lab]) cannot: drives that say that they are empty, the kernel's own events and
// iso9660, udev, a boot loaderless but whole boot, packages on a system of their own.
//
// It needs no KVM: a VM boots in half a minute on two cores. It needs root, for the image. Everything but this file
// carries the build tags lab and vm.
//
// What a VM is made of belongs to the process that made it: qemu dies with the thread that started it
// (PR_SET_PDEATHSIG), its disk has no name, its monitor, console and channel are sockets without one, and the image is put
// together in mounts of a namespace of its own.
//
// A VM is talked to through a virtio port, on whose other end the program internal/vmlab/guest runs; the same program is
// the initial RAM disk's init.
package vmlab
