//go:build lab && linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"cks-etcd/internal/lab"
	"cks-etcd/internal/marker"
	"cks-etcd/internal/reason"
)

const (
	agentPath  = "/usr/local/bin/etcd-nodeagent" // in the hosts
	markerPath = "/home/cloud/etcd-setup-failed"
	statePath  = "/var/lib/etcd-nodeagent/state.json"
	drive      = "sr0"

	// insertAfter is how long the agents wait for their ISO, so that it can be seen to come after the start.
	insertAfter = 2 * time.Second
	// runTimeout bounds one agent's run. It takes 10 to 20 seconds, most of them watching that etcd stays up.
	runTimeout = 3 * time.Minute
)

// programs are the files that are shown; "" is built.
type programs struct{ agent, fleet string }

func run(ctx context.Context, p *printer, programs programs) (err error) {
	began := time.Now()
	dir, err := os.MkdirTemp("", "cks-etcd-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	im, err := makeImages(ctx, p, dir)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		p.step("left out, because it needs root: the three hosts that become an etcd cluster, and the fourth that says why not")
		p.say("run it as root to see them; what needs no root went as promised")
		return nil
	}

	for _, f := range []struct {
		file *string
		name string
		pkg  string
	}{{&programs.agent, "etcd-nodeagent", "cks-etcd/nodeagent"}, {&programs.fleet, "etcd-fleet", "cks-etcd/fleet"}} {
		if *f.file == "" {
			*f.file = filepath.Join(dir, f.name)
			if err := build(ctx, p, *f.file, f.pkg); err != nil {
				return err
			}
		} else if _, err := os.Stat(*f.file); err != nil {
			return err
		}
	}

	p.step("hosts' root file system, network")
	l, err := lab.Up(ctx, lab.Options{Log: func(s string) { p.say("%s", s) }})
	if err != nil {
		return err
	}
	defer func() {
		p.step("cleaning up")
		err = errors.Join(err, l.Close())
	}()
	d := &demo{lab: l, p: p, programs: programs}
	if err := d.cluster(ctx, im.with); err != nil {
		return err
	}
	why, err := d.refused(ctx, im.without)
	if err != nil {
		return err
	}
	if err := d.fromOutside(ctx, dir, why); err != nil {
		return err
	}
	p.step("all as promised, after %.0f s", time.Since(began).Seconds())
	return nil
}

func build(ctx context.Context, p *printer, out, pkg string) error {
	p.step("%s from source", filepath.Base(out))
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build %s: %w: %s", filepath.Base(out), err, b)
	}
	return nil
}

// demo is one run of the part that needs root.
type demo struct {
	lab *lab.Lab
	p   *printer
	programs
	ips []string // of the hosts
}

// cluster makes three hosts an etcd cluster.
func (d *demo) cluster(ctx context.Context, iso string) error {
	members := make([]lab.Member, 3)
	for i := range members {
		ip, err := d.lab.ReserveIP()
		if err != nil {
			return err
		}
		members[i] = lab.Member{Name: fmt.Sprintf("etcd-%d", i+1), IP: ip}
		d.ips = append(d.ips, ip)
	}
	d.p.step("three hosts: systemd, sshd, etcd.service as CloudStack's user data writes it, an empty CD drive")
	hosts := make([]*lab.Host, len(members))
	err := each(len(members), func(i int) (err error) {
		hosts[i], err = d.start(ctx, members[i], members)
		return err
	})
	if err != nil {
		return err
	}

	d.p.step("etcd-nodeagent setup on each, as cloud-init runs it; their ISO comes %v later", insertAfter)
	err = each(len(hosts), func(i int) error {
		h := hosts[i]
		r, err := d.setup(ctx, h, iso)
		if err != nil {
			return err
		}
		if r.Exit != reason.ExitYes {
			return fmt.Errorf("%s: setup ended with exit status %d, want %d", h.Name(), r.Exit, reason.ExitYes)
		}
		return d.isReady(h)
	})
	if err != nil {
		return err
	}
	return d.health(ctx, hosts[0], members)
}

// start starts a host that has everything but its ISO.
func (d *demo) start(ctx context.Context, m lab.Member, members []lab.Member) (*lab.Host, error) {
	began := time.Now()
	unit := lab.File{Path: lab.UnitPath, Data: []byte(lab.UpstreamUnit(m.Name, m.IP, members)), Mode: lab.UnitMode}
	h, err := d.lab.Start(ctx, lab.HostOptions{Name: m.Name, IP: m.IP, Files: []lab.File{unit}})
	if err != nil {
		return nil, err
	}
	if err := h.WaitReady(ctx); err != nil {
		return nil, err
	}
	if err := h.AddDrive(drive); err != nil {
		return nil, err
	}
	if err := h.CopyIn(d.agent, agentPath); err != nil {
		return nil, err
	}
	d.p.say("%s at %s: up after %.1f s", m.Name, m.IP, time.Since(began).Seconds())
	return h, nil
}

// setup runs the agent in the host, gives the host its ISO meanwhile, and waits for the agent's end.
func (d *demo) setup(ctx context.Context, h *lab.Host, iso string) (lab.Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, runTimeout, fmt.Errorf("setup did not end within %v", runTimeout))
	defer cancel()
	began := time.Now()
	w := d.p.host(h.Name())
	p, err := h.Start(ctx, lab.Command{Args: []string{agentPath, "setup", "--iso-wait", "2m", "--start-timeout", "2m"}, Stdout: w, Stderr: w})
	if err != nil {
		return lab.Result{}, err
	}
	select {
	case <-time.After(insertAfter):
		fmt.Fprintln(w, "(its ISO is inserted)")
		if err := h.InsertCD(drive, iso); err != nil {
			return lab.Result{}, err
		}
	case <-p.Done(): // too early: its exit status tells
	case <-ctx.Done():
	}
	r, err := p.Wait()
	if err != nil {
		return r, fmt.Errorf("%s: %w", h.Name(), err)
	}
	fmt.Fprintf(w, "exit status %d after %.1f s\n", r.Exit, time.Since(began).Seconds())
	return r, nil
}

// isReady checks that the host's state file agrees with the exit status.
func (d *demo) isReady(h *lab.Host) error {
	state, err := d.state(h)
	if err != nil {
		return err
	}
	if state.Result != marker.ResultReady {
		return fmt.Errorf("%s: state file says %q, want %q", h.Name(), state.Result, marker.ResultReady)
	}
	if _, err := h.Lstat(markerPath); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s: looking for a failure marker = %v, want that there is none", h.Name(), err)
	}
	return nil
}

func (d *demo) state(h *lab.Host) (marker.State, error) {
	b, err := h.ReadFile(statePath)
	if err != nil {
		return marker.State{}, err
	}
	return marker.ParseState(b)
}

// health asks the members of the cluster whether they are healthy, with the etcdctl that the agent installed.
func (d *demo) health(ctx context.Context, h *lab.Host, members []lab.Member) error {
	endpoints := make([]string, len(members))
	for i, m := range members {
		endpoints[i] = fmt.Sprintf("http://%s:2379", m.IP)
	}
	d.p.step("etcdctl endpoint health, asked on %s", h.Name())
	w := d.p.host(h.Name())
	r, err := h.Run(ctx, lab.Command{
		Args:   []string{"/opt/bin/etcdctl", "--endpoints=" + strings.Join(endpoints, ","), "--command-timeout=30s", "endpoint", "health"},
		Stdout: w, Stderr: w,
	})
	if err != nil {
		return err
	}
	if healthy := strings.Count(r.Stdout+r.Stderr, " is healthy"); r.Exit != 0 || healthy != len(members) {
		return fmt.Errorf("%d of %d members are healthy (exit status %d)", healthy, len(members), r.Exit)
	}
	list, err := h.Must(ctx, "/opt/bin/etcdctl", "member", "list")
	if err != nil {
		return err
	}
	if started := strings.Count(list, ", started, "); started != len(members) {
		return fmt.Errorf("etcd lists %d started members, want %d:\n%s", started, len(members), list)
	}
	return nil
}

// refused shows a host whose ISO has no etcd, and returns its reason.
func (d *demo) refused(ctx context.Context, iso string) (why string, err error) {
	ip, err := d.lab.ReserveIP()
	if err != nil {
		return "", err
	}
	d.p.step("a fourth host, whose ISO was built without etcd")
	m := lab.Member{Name: "etcd-4", IP: ip}
	d.ips = append(d.ips, ip)
	h, err := d.start(ctx, m, []lab.Member{m})
	if err != nil {
		return "", err
	}
	r, err := d.setup(ctx, h, iso)
	if err != nil {
		return "", err
	}
	text, err := h.ReadFile(markerPath)
	if err != nil {
		return "", err
	}
	line, rest, ended := strings.Cut(string(text), "\n")
	d.p.say("%s: %s", markerPath, line)
	state, err := d.state(h)
	if err != nil {
		return "", err
	}
	switch {
	case r.Exit != reason.ExitNo:
		return "", fmt.Errorf("%s: exit status %d, want %d", h.Name(), r.Exit, reason.ExitNo)
	case line == "" || !ended || rest != "":
		return "", fmt.Errorf("%s: the marker holds %q, want one line", h.Name(), text)
	case state.Code != reason.ArchiveMissing:
		return "", fmt.Errorf("%s: state file says %q, want %q", h.Name(), state.Code, reason.ArchiveMissing)
	}
	return line, nil
}

// each calls f for 0 to n-1 at once and returns what went wrong.
func each(n int, f func(int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
