package answers

import (
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

// Of returns the answer about one file of the image with that identity: what
// inspect.Check said, without where and when it was said. It can be kept unless
// the value is unknown.
func Of(key string, image inspect.Image, r inspect.Result) Answer {
	a := Answer{
		Key: key, File: r.File, Rules: inspect.Rules, Value: r.Value, Code: reason.Included,
		Version: r.Version, Arch: r.Arch, SHA256: r.SHA256, Deep: r.Deep, Notes: r.Notes,
		Names: image.Names, VolumeID: image.VolumeID, Digest: image.Digest,
		// What could not be told is not left out of a list for that.
		Kubernetes: image.Kubernetes != inspect.No || r.Value.Yes() && r.File == inspect.EtcdArchive,
	}
	if r.Err != nil {
		a.Code, a.Message = reason.Of(r.Err), r.Err.Error()
	}
	return a
}
