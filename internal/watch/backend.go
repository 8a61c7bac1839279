package watch

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"cks-etcd/internal/admit"
	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/scan"
	"cks-etcd/internal/source"
)

// A scanner looks at the stores and URLs of a configuration. *scan.Scanner is
// the real one.
type scanner interface {
	admit.Asker
	Reload(scan.Config)
	Round(context.Context) scan.Round
	ISOs() []scan.ISO
	// Observe has step called whenever a round has got on, as after each copy it
	// listed or looked at, and looked after each look that a round began; both by any
	// goroutine, and both return at once.
	Observe(step func(), looked func(value inspect.Value, err error, took time.Duration))
}

// A backend is a scanner with what it stands on.
type backend struct {
	scanner
	usable func(context.Context) error // whether answers can be read
	lost   func() int                  // workers lost to reads that never came back
	close  func()
}

// openBackend opens the answers and makes a scanner for c.
func openBackend(ctx context.Context, c Config, o Options) (*backend, error) {
	store, err := answers.Open(ctx, c.Answers, answers.Options{Rebuild: o.Rebuild})
	if err != nil {
		return nil, err
	}
	opener, err := openSource(c, o)
	if err != nil {
		store.Close()
		return nil, err
	}
	scanner := scan.New(c.Scan(), store, opener, o.Log)
	return &backend{
		scanner: scanner,
		usable: func(ctx context.Context) error {
			_, _, err := store.GetMany(ctx, nil)
			return err
		},
		lost: opener.Lost,
		close: func() {
			if err := errors.Join(scanner.Close(), store.Close()); err != nil {
				o.Log.Warn("cannot write what was learned", "err", err)
			}
			opener.Close()
		},
	}, nil
}

// openSource makes what reads ISOs, from the files that c names for that.
func openSource(c Config, o Options) (*source.Opener, error) {
	return source.New(source.Options{
		Timeout: c.ReadTimeout,
		CAFile:  c.HTTP.CA,
		Headers: c.HTTP.Headers,
		Netrc:   c.HTTP.Netrc,
		Agent:   "etcd-fleet/" + o.Version,
		Calls:   o.calls,
		Log:     o.Log,
	})
}

// Scan returns the part of the configuration that is the scanner's.
func (c Config) Scan() scan.Config {
	return scan.Config{
		Stores:       c.Stores,
		URLs:         c.URLs,
		File:         c.File,
		All:          c.All,
		FailureLimit: c.FailureLimit,
		Jobs:         c.Jobs,
		LookTimeout:  c.LookTimeout,
		ReadTimeout:  c.ReadTimeout,
		Retry:        c.Interval / 2,
	}
}

// An asker asks a scanner on behalf of a request.
type asker struct {
	scanner
	config  *Config
	metrics *metrics
}

// Known passes the question on for ISOs that may be asked for.
func (a asker) Known(ctx context.Context, iso, zone string) (answers.Answer, bool, error) {
	if err := a.config.mayAsk(iso); err != nil {
		return answers.Answer{}, false, err
	}
	return a.scanner.Known(ctx, iso, zone)
}

// Look passes the question on for ISOs that may be asked for.
func (a asker) Look(ctx context.Context, iso, zone string) (answers.Answer, error) {
	if err := a.config.mayAsk(iso); err != nil {
		return answers.Answer{}, err
	}
	began := time.Now()
	answer, err := a.scanner.Look(ctx, iso, zone)
	a.metrics.requestLook(answer, err, time.Since(began))
	return answer, err
}

// mayAsk keeps requests to what is configured: a template or name, a path in a
// store, a URL that is listed. Otherwise whoever may ask could have any file and any
// server behind the firewall looked at.
func (c *Config) mayAsk(iso string) error {
	if c.AdmitAny {
		return nil
	}
	if source.IsURL(iso) || strings.Contains(iso, "://") {
		for _, u := range c.URLs {
			if u.URL == iso {
				return nil
			}
		}
		return reason.New(reason.SourceDenied, "%s is not among the URLs of the configuration", source.Redact(iso)).
			WithHint("add it to \"urls\" of the configuration, or set \"admit_any\"")
	}
	if !strings.ContainsAny(iso, "/:") && iso != "." && iso != ".." {
		return nil // a template's id or name
	}
	for _, s := range c.Stores {
		rel, err := filepath.Rel(s.Path, filepath.Clean(iso))
		if filepath.IsAbs(iso) && err == nil && rel != "." && filepath.IsLocal(rel) {
			return nil
		}
	}
	return reason.New(reason.SourceDenied, "%s is in no store of the configuration", iso).
		WithHint("add its directory to \"stores\" of the configuration, or set \"admit_any\"")
}

// discard is the log of somebody who wants none.
func discard(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
