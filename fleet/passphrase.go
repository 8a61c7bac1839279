package main

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/term"

	"cks-etcd/internal/reason"
)

// passphrase returns what asks for the passphrase of a key until ctx ends, or
// nil where there is nobody to ask.
func (o *output) passphrase(ctx context.Context, std streams) func(string) ([]byte, error) {
	in, ok := std.in.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return nil
	}
	return func(keyfile string) (secret []byte, err error) {
		o.screen.Suspend(func() {
			if err = context.Cause(ctx); err != nil {
				return // the screen came too late
			}
			fmt.Fprintf(o.std.err, "passphrase of %s: ", reason.Line(keyfile))
			secret, err = readPassword(ctx, int(in.Fd()))
			fmt.Fprintln(o.std.err)
		})
		return secret, err
	}
}

// readPassword reads a line from the terminal without echo. When ctx ends, the
// terminal is made what it was; the goroutine that reads ends with the program,
// since nothing else ends the read of a terminal.
func readPassword(ctx context.Context, fd int) ([]byte, error) {
	before, err := term.GetState(fd)
	if err != nil {
		return nil, err
	}
	type result struct {
		secret []byte
		err    error
	}
	c := make(chan result, 1)
	go func() {
		secret, err := term.ReadPassword(fd)
		c <- result{secret, err}
	}()
	select {
	case r := <-c:
		return r.secret, r.err
	case <-ctx.Done():
		if err := term.Restore(fd, before); err != nil {
			return nil, err
		}
		return nil, context.Cause(ctx)
	}
}
