// Package media finds the Kubernetes binaries ISO on this node and waits for
// it: the cloud attaches the ISO long after the node has booted, detaches it
// again, and attaches others beside it.
//
// The ISO is told by what it holds, which is the etcd archive. Its label, the
// name of its drive and the order of the drives say nothing: a volume id is
// "CDROM", "ISOIMAGE" or empty depending on who built the image, a config drive
// often comes first, and a hypervisor with a single CD drive attaches one of the
// two as a plain disk.
//
// Media are read straight from their block devices. Nothing is mounted and no
// descriptor stays open between two looks, so nothing here ever keeps the cloud
// from detaching an ISO. A file system that somebody else has mounted is read
// through its mount only where its device gives no answer.
//
// Every look has one of three results: the archive is there, it is certainly
// not there, or nobody can tell now. Only the first two end the wait.
//
// The package reads block devices as Linux presents them; on other systems it
// builds, but has no New.
package media

import (
	"context"
	"log/slog"
	"time"
)

// DefaultArchive is where create-kubernetes-binaries-iso.sh puts the etcd
// archive, on images for any architecture.
const DefaultArchive = "etcd/etcd-linux-amd64.tar.gz"

const (
	// defaultRescan is the pause between two looks at everything. Kernel
	// events are lost in containers and come late where nothing asks the
	// kernel to poll the drive, so the re-scan is what finds the medium then.
	defaultRescan = 2 * time.Second

	// defaultReadTimeout is how long one look at a device, or one read of the
	// archive, may take before the device counts as not answering. A virtual
	// drive answers in milliseconds and a real one spins up in some seconds; an
	// image on a stalled NFS store does not answer at all.
	defaultReadTimeout = 20 * time.Second

	// missingGrace is how long a device that cannot be read may keep a
	// Kubernetes ISO without the archive from being the answer. It is longer
	// than a drive needs to become ready after an insertion and than the
	// default read timeout, and far shorter than the wait for an ISO.
	missingGrace = 30 * time.Second

	// settleTime is how long a look that is still running may hold up a
	// verdict that another device already allows. It lets two drives that
	// answer normally be judged together.
	settleTime = time.Second

	// minGap is the least time between the starts of two looks, however many
	// events the kernel sends. An insertion alone sends several.
	minGap = 250 * time.Millisecond
)

// Options say what to look for and where. The zero value looks for
// DefaultArchive on this machine.
type Options struct {
	// Archive is the slash-separated path of the archive on the ISO.
	Archive string

	// Dev, Sys and MountInfo are where the device nodes, sysfs and the mount
	// table are: "/dev", "/sys" and "/proc/self/mountinfo" when empty.
	Dev, Sys, MountInfo string

	Rescan      time.Duration // pause between two looks; 0: 2 s
	ReadTimeout time.Duration // bound of one look and of one read; 0: 20 s

	// Log gets one line for every change in what is seen. nil: no log.
	Log *slog.Logger

	// Uevents returns a channel that yields a value when a block device may
	// have changed, until ctx ends; a closed channel or an error leaves the
	// re-scan alone. nil: the kernel's uevents.
	Uevents func(ctx context.Context) (<-chan struct{}, error)
}

func (o Options) withDefaults() Options {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&o.Archive, DefaultArchive)
	def(&o.Dev, "/dev")
	def(&o.Sys, "/sys")
	def(&o.MountInfo, "/proc/self/mountinfo")
	if o.Rescan <= 0 {
		o.Rescan = defaultRescan
	}
	if o.ReadTimeout <= 0 {
		o.ReadTimeout = defaultReadTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}
