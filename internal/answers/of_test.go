package answers

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

func TestOf(t *testing.T) {
	image := inspect.Image{Names: "Rock Ridge", VolumeID: "CDROM", Digest: "ab", Kubernetes: inspect.No}
	got := Of("file:1", image, inspect.Result{File: "a", Value: inspect.Missing, Err: reason.New(reason.FileMissing, "a is not on the ISO")})
	want := Answer{Key: "file:1", File: "a", Rules: inspect.Rules, Value: inspect.Missing, Code: reason.FileMissing,
		Message: "file missing: a is not on the ISO", Names: "Rock Ridge", VolumeID: "CDROM", Digest: "ab"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// The etcd archive makes an ISO worth listing, whatever else it lacks.
	got = Of("file:1", image, inspect.Result{File: inspect.EtcdArchive, Value: inspect.Included, Version: "3.5.21", Arch: "amd64"})
	if !got.Kubernetes || got.Code != reason.Included || got.Version != "3.5.21" {
		t.Errorf("%+v", got)
	}
}
