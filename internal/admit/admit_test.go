package admit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

// An asker answers as a test says, and notes what it was asked.
type asker struct {
	known func(ctx context.Context) (answers.Answer, bool, error)
	look  func(ctx context.Context) (answers.Answer, error)
	calls []string
}

func (a *asker) Known(ctx context.Context, iso, zone string) (answers.Answer, bool, error) {
	a.calls = append(a.calls, "known "+iso+" "+zone)
	return a.known(ctx)
}

func (a *asker) Look(ctx context.Context, iso, zone string) (answers.Answer, error) {
	a.calls = append(a.calls, "look "+iso+" "+zone)
	return a.look(ctx)
}

// silent fails the test when it is asked.
type silent struct{ t *testing.T }

func (s silent) Known(context.Context, string, string) (answers.Answer, bool, error) {
	s.t.Error("it was asked what is known")
	return answers.Answer{}, false, nil
}

func (s silent) Look(context.Context, string, string) (answers.Answer, error) {
	s.t.Error("a look was taken")
	return answers.Answer{}, nil
}

var (
	included = answers.Answer{File: inspect.EtcdArchive, Value: inspect.Included, Code: reason.Included, Version: "3.5.21", Name: "setup-v1.33.1-x86_64"}
	missing  = answers.Answer{File: inspect.EtcdArchive, Value: inspect.Missing, Code: reason.ArchiveMissing, Name: "setup-v1.33.1-x86_64",
		Message: "etcd archive missing: etcd/etcd-linux-amd64.tar.gz is not on the ISO"}
	broken = answers.Answer{File: inspect.EtcdArchive, Value: inspect.Broken, Code: reason.ArchiveEmpty, Name: "setup-v1.33.1-x86_64",
		Message: "etcd archive is empty: it has 0 bytes"}
)

func knows(a answers.Answer) func(context.Context) (answers.Answer, bool, error) {
	return func(context.Context) (answers.Answer, bool, error) { return a, true, nil }
}

func knowsNothing(context.Context) (answers.Answer, bool, error) { return answers.Answer{}, false, nil }

func sees(a answers.Answer) func(context.Context) (answers.Answer, error) {
	return func(context.Context) (answers.Answer, error) { return a, nil }
}

func cannot(err error) func(context.Context) (answers.Answer, error) {
	return func(context.Context) (answers.Answer, error) { return answers.Answer{}, err }
}

// TestDecide is rows 5 to 7, 16 and 17 of what the system must do.
func TestDecide(t *testing.T) {
	request := Request{EtcdNodes: 3, ISO: "203", Version: "v1.33.1", Zone: "east"}
	known, look := "known 203 east", "look 203 east"
	refusal := "Kubernetes version v1.33.1 cannot have etcd nodes: etcd/etcd-linux-amd64.tar.gz "
	unchecked := "allowed, unchecked: whether Kubernetes version v1.33.1 can have etcd nodes is not known: "
	for _, tt := range []struct {
		name  string
		known func(context.Context) (answers.Answer, bool, error)
		look  func(context.Context) (answers.Answer, error)
		want  Decision
		calls []string
	}{
		{
			name:  "row 5: true goes ahead without a look",
			known: knows(included),
			want: Decision{Allow: true, Checked: true, Value: inspect.Included, Code: reason.Included, Answer: &included,
				Message: "Kubernetes version v1.33.1 has etcd 3.5.21: etcd/etcd-linux-amd64.tar.gz is on ISO setup-v1.33.1-x86_64"},
			calls: []string{known},
		},
		{
			name:  "row 5: false is refused at once, naming version and file",
			known: knows(missing),
			want: Decision{Checked: true, Value: inspect.Missing, Code: reason.ArchiveMissing, Answer: &missing,
				Message: refusal + "is not on ISO setup-v1.33.1-x86_64", Hint: reason.Lookup(reason.ArchiveMissing).Hint},
			calls: []string{known},
		},
		{
			name:  "row 5: a file that is there and cannot serve is refused as well",
			known: knows(broken),
			want: Decision{Checked: true, Value: inspect.Broken, Code: reason.ArchiveEmpty, Answer: &broken,
				Message: refusal + "on ISO setup-v1.33.1-x86_64 cannot be used: " + broken.Message, Hint: reason.Lookup(reason.ArchiveEmpty).Hint},
			calls: []string{known},
		},
		{
			name:  "row 5: unknown is looked at, and true goes ahead",
			known: knowsNothing,
			look:  sees(included),
			want: Decision{Allow: true, Checked: true, Value: inspect.Included, Code: reason.Included, Answer: &included,
				Message: "Kubernetes version v1.33.1 has etcd 3.5.21: etcd/etcd-linux-amd64.tar.gz is on ISO setup-v1.33.1-x86_64"},
			calls: []string{known, look},
		},
		{
			name:  "row 5: unknown is looked at, and false is refused",
			known: knowsNothing,
			look:  sees(missing),
			want: Decision{Checked: true, Value: inspect.Missing, Code: reason.ArchiveMissing, Answer: &missing,
				Message: refusal + "is not on ISO setup-v1.33.1-x86_64", Hint: reason.Lookup(reason.ArchiveMissing).Hint},
			calls: []string{known, look},
		},
		{
			name:  "row 5: a check that cannot run lets the request through",
			known: knowsNothing,
			look:  cannot(reason.New(reason.SourceUnreachable, "nfs1: connection refused")),
			want: Decision{Allow: true, Value: inspect.Unknown, Code: reason.AdmitUnchecked, Cause: reason.SourceUnreachable,
				Message: unchecked + "cannot be reached: nfs1: connection refused", Hint: reason.Lookup(reason.SourceUnreachable).Hint},
			calls: []string{known, look},
		},
		{
			name: "row 5: what is remembered cannot be read, and the look decides",
			known: func(context.Context) (answers.Answer, bool, error) {
				return missing, true, reason.New(reason.AnswersBusy, "answers.db")
			},
			look: sees(included),
			want: Decision{Allow: true, Checked: true, Value: inspect.Included, Code: reason.Included, Answer: &included,
				Message: "Kubernetes version v1.33.1 has etcd 3.5.21: etcd/etcd-linux-amd64.tar.gz is on ISO setup-v1.33.1-x86_64"},
			calls: []string{known, look},
		},
		{
			name:  "row 16: direct download",
			known: knowsNothing,
			look:  cannot(reason.New(reason.DirectDownload, "203")),
			want: Decision{Allow: true, Value: inspect.Unknown, Code: reason.AdmitUnchecked, Cause: reason.DirectDownload,
				Message: unchecked + "ISO is downloaded by the hosts directly: 203", Hint: reason.Lookup(reason.DirectDownload).Hint},
			calls: []string{known, look},
		},
		{
			name: "row 17: no storage endpoint",
			known: func(context.Context) (answers.Answer, bool, error) {
				return answers.Answer{}, false, errors.New("refused")
			},
			look: cannot(errors.New("dial tcp: connection refused")),
			want: Decision{Allow: true, Value: inspect.Unknown, Code: reason.AdmitUnchecked, Cause: reason.Internal,
				Message: unchecked + "dial tcp: connection refused", Hint: reason.Lookup(reason.Internal).Hint},
			calls: []string{known, look},
		},
		{
			name:  "row 17: an answer nobody understands is none",
			known: knows(answers.Answer{Value: "perhaps"}),
			look:  sees(answers.Answer{Value: "command not found"}),
			want: Decision{Allow: true, Value: inspect.Unknown, Code: reason.AdmitUnchecked, Cause: reason.SourceBadAnswer,
				Message: unchecked + `server's answer cannot be used: "command not found" is no answer about ISO 203`, Hint: reason.Lookup(reason.SourceBadAnswer).Hint},
			calls: []string{known, look},
		},
		{
			name:  "row 17: an empty answer is none",
			known: knows(answers.Answer{}),
			look:  sees(answers.Answer{}),
			want: Decision{Allow: true, Value: inspect.Unknown, Code: reason.AdmitUnchecked, Cause: reason.SourceBadAnswer,
				Message: unchecked + `server's answer cannot be used: "" is no answer about ISO 203`, Hint: reason.Lookup(reason.SourceBadAnswer).Hint},
			calls: []string{known, look},
		},
		{
			name:  "row 16: a crash of the check",
			known: func(context.Context) (answers.Answer, bool, error) { panic("index out of range") },
			want: Decision{Allow: true, Value: inspect.Unknown, Code: reason.AdmitUnchecked, Cause: reason.Internal,
				Message: unchecked + "internal error: asking about ISO 203: index out of range", Hint: reason.Lookup(reason.Internal).Hint},
			calls: []string{known},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := &asker{known: tt.known, look: tt.look}
			got := Decide(t.Context(), request, a, time.Minute)
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(Decision{}, "Took")); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.calls, a.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

// Row 7: clusters without etcd nodes are as they were, and nothing is asked.
func TestNoEtcdNodes(t *testing.T) {
	for _, nodes := range []int{0, -1} {
		got := Decide(t.Context(), Request{EtcdNodes: nodes, ISO: "203", Version: "v1.33.1"}, silent{t}, 0)
		want := Decision{Allow: true, Code: reason.NotAsked, Message: "no etcd nodes asked for: nothing is checked"}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Decision{}, "Took")); diff != "" {
			t.Errorf("%d nodes (-want +got):\n%s", nodes, diff)
		}
	}
}

// A request that names no ISO cannot be checked, and is not refused.
func TestRow16NoISO(t *testing.T) {
	got := Decide(t.Context(), Request{EtcdNodes: 1}, silent{t}, 0)
	if !got.Allow || got.Code != reason.AdmitUnchecked || got.Cause != reason.NoCopy {
		t.Errorf("got %+v, want it allowed, unchecked", got)
	}
}

// The wait is over before the look is, whether or not the look heeds its context; a
// later answer changes nothing.
func TestRow16Wait(t *testing.T) {
	hang := func(context.Context) (answers.Answer, bool, error) {
		time.Sleep(time.Hour)
		return missing, true, nil
	}
	heed := func(ctx context.Context) (answers.Answer, error) {
		<-ctx.Done()
		return answers.Answer{}, ctx.Err()
	}
	late := func(context.Context) (answers.Answer, error) {
		time.Sleep(time.Hour)
		return missing, nil
	}
	for _, tt := range []struct {
		name       string
		wait, took time.Duration
		asker      *asker
	}{
		{"what is known does not come", 3 * time.Second, 3 * time.Second, &asker{known: hang}},
		{"the look heeds its context", 3 * time.Second, 3 * time.Second, &asker{known: knowsNothing, look: heed}},
		{"the look heeds nothing", 3 * time.Second, 3 * time.Second, &asker{known: knowsNothing, look: late}},
		{"the default", 0, DefaultWait, &asker{known: knowsNothing, look: heed}},
		{"less than nothing", -1, DefaultWait, &asker{known: knowsNothing, look: heed}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := Decide(t.Context(), Request{EtcdNodes: 3, ISO: "203"}, tt.asker, tt.wait)
				if !got.Allow || got.Checked || got.Code != reason.AdmitUnchecked || got.Cause != reason.SourceStalled {
					t.Errorf("got %+v, want it allowed, unchecked, for want of an answer in time", got)
				}
				if got.Took != tt.took {
					t.Errorf("it took %v, want %v", got.Took, tt.took)
				}
				if want := "the look at ISO 203: it took longer than " + tt.took.String(); !strings.Contains(got.Message, want) {
					t.Errorf("message %q does not say %q", got.Message, want)
				}
				time.Sleep(2 * time.Hour) // until what heeds nothing has ended
			})
		})
	}
}

// The end of the caller's context is not a refusal either.
func TestCallerGone(t *testing.T) {
	for _, tt := range []struct {
		name  string
		ctx   func(context.Context) (context.Context, context.CancelFunc)
		cause reason.Code
	}{
		{"cancelled", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel
		}, reason.Interrupted},
		{"deadline", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		}, reason.SourceStalled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := tt.ctx(t.Context())
				defer cancel()
				got := Decide(ctx, Request{EtcdNodes: 3, ISO: "203"}, &asker{known: knowsNothing, look: func(ctx context.Context) (answers.Answer, error) {
					<-ctx.Done()
					return answers.Answer{}, ctx.Err()
				}}, time.Minute)
				if !got.Allow || got.Code != reason.AdmitUnchecked || got.Cause != tt.cause {
					t.Errorf("got %+v, want it allowed, unchecked, with cause %s", got, tt.cause)
				}
			})
		})
	}
}

// A refusal is one line that names version and file, whatever the names are.
func TestMessage(t *testing.T) {
	long := strings.Repeat("ü", 3000)
	for _, tt := range []struct {
		name         string
		request      Request
		answer       answers.Answer
		code         reason.Code
		includes     []string
		unacceptable string
	}{
		{"long names", Request{EtcdNodes: 1, ISO: long, Version: "v1.33.1-" + long},
			answers.Answer{Value: inspect.Missing, Code: reason.ArchiveMissing, File: inspect.EtcdArchive, Name: long, Message: long},
			reason.ArchiveMissing, []string{"v1.33.1-ü", inspect.EtcdArchive}, "\ufffd"},
		{"control characters", Request{EtcdNodes: 1, ISO: "203", Version: "v1\n\x1b[2Jallowed"},
			answers.Answer{Value: inspect.Missing, Code: reason.ArchiveMissing, File: inspect.EtcdArchive, Name: "a\r\nb"},
			reason.ArchiveMissing, []string{"v1 ?[2Jallowed", "a b"}, "\n"},
		{"no version", Request{EtcdNodes: 1, ISO: "203"},
			answers.Answer{Value: inspect.Missing, Code: reason.ArchiveMissing, File: inspect.EtcdArchive},
			reason.ArchiveMissing, []string{"this Kubernetes version", inspect.EtcdArchive, "ISO 203"}, "\n"},
		{"another file", Request{EtcdNodes: 1, ISO: "203", Version: "v1"},
			answers.Answer{Value: inspect.Missing, Code: reason.FileMissing, File: "etcd/other.tar.gz"},
			reason.FileMissing, []string{"etcd/other.tar.gz"}, inspect.EtcdArchive},
		{"a code of a later version", Request{EtcdNodes: 1, ISO: "203", Version: "v1"},
			answers.Answer{Value: inspect.Missing, Code: "archive-on-strike", File: "etcd/other.tar.gz"},
			reason.FileMissing, []string{"etcd/other.tar.gz"}, "bug"},
		{"a code that is no refusal", Request{EtcdNodes: 1, ISO: "203", Version: "v1"},
			answers.Answer{Value: inspect.Broken, Code: reason.Included, Message: "it is not gzip"},
			reason.ArchiveMissing, []string{inspect.EtcdArchive, "it is not gzip"}, "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Decide(t.Context(), tt.request, &asker{known: knows(tt.answer)}, 0)
			if got.Allow || got.Code != tt.code || reason.Lookup(got.Code).Exit != reason.ExitNo {
				t.Errorf("got allow %v, code %s, want a refusal with code %s", got.Allow, got.Code, tt.code)
			}
			for _, want := range tt.includes {
				if !strings.Contains(got.Message, want) {
					t.Errorf("message %q does not say %q", got.Message, want)
				}
			}
			if strings.Contains(got.Message, tt.unacceptable) || got.Message != reason.Line(got.Message) {
				t.Errorf("message %q is no clean line", got.Message)
			}
		})
	}
}
