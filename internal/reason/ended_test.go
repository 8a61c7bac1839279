package reason

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestEnded(t *testing.T) {
	late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errors.New("interrupt signal received"))
	coded, end := context.WithCancelCause(t.Context())
	end(New(SourceChanged, "the file grew").WithHint("wait"))
	for _, c := range []struct {
		ctx  context.Context
		code Code
		text string
	}{
		{late, SourceStalled, "no answer in time: reading a.iso: context deadline exceeded"},
		{stopped, Interrupted, "interrupted: reading a.iso: interrupt signal received"},
		{coded, SourceChanged, "changed while it was read: reading a.iso: the file grew"},
	} {
		e := Ended(c.ctx, "reading %s", "a.iso")
		if e.Code != c.code || e.Error() != c.text {
			t.Errorf("%s: %s; want %s: %s", e.Code, e, c.code, c.text)
		}
	}
	if h := HintOf(Ended(coded, "x")); !strings.Contains(h, "wait") {
		t.Errorf("the hint is %q", h)
	}
}
