//go:build lab && linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
)

// A cost is what two checks of all nodes took.
type cost struct {
	wall   time.Duration // pauses by intent included
	client time.Duration // CPU time, user and system, of the tool and all it started
	nodes  time.Duration // that of the sshds and what they ran
}

// A meter measures tools.
type meter struct {
	site *site
}

// userHZ is the unit of times in /proc/PID/stat on every architecture that Go
// knows (proc_pid_stat(5)).
const userHZ = 100

// settlePatience is how long sessions may take to end after their clients did.
const settlePatience = 10 * time.Second

// newMeter makes this process the one that orphans are given to. ansible leaves
// ssh masters behind that are nobody's children; what they used counts as well.
func newMeter(s *site) (*meter, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("cannot become a subreaper: %w", err)
	}
	return &meter{site: s}, nil
}

// measure makes two checks with a tool. All nodes must be seen active.
func (m *meter) measure(ctx context.Context, t contender) (c cost, err error) {
	m.settle()
	before := m.nodesCPU()
	for range t.runs {
		if err := m.once(ctx, t, &c); err != nil {
			m.endStrays()
			return c, err
		}
	}
	c.client += m.endStrays()
	m.settle()
	c.nodes = m.nodesCPU() - before
	return c, nil
}

// once runs a tool once, and adds to c what it took. Its output goes to files:
// a pipe could be held open by a master that is left behind.
func (m *meter) once(ctx context.Context, t contender, c *cost) error {
	cmd := exec.CommandContext(ctx, t.args[0], t.args[1:]...)
	cmd.Env = m.site.environment()
	out, err := os.Create(filepath.Join(m.site.dir, "stdout"))
	if err != nil {
		return err
	}
	defer out.Close()
	log, err := os.Create(filepath.Join(m.site.dir, "stderr"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = out, log
	begin := time.Now()
	runErr := cmd.Run()
	c.wall += time.Since(begin)
	answer, err := os.ReadFile(out.Name())
	if err != nil {
		return err
	}
	said, _ := os.ReadFile(log.Name()) // for the message only
	if runErr != nil {
		return fmt.Errorf("%w: %s", runErr, reason.Line(string(said)+string(answer)))
	}
	c.client += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if got, want := t.count(string(answer)), len(m.site.addrs); got != want {
		return fmt.Errorf("%d of %d nodes are active: %s", got, want, reason.Line(string(said)+string(answer)))
	}
	return nil
}

// endStrays ends what a tool left behind, and returns the CPU time it used.
func (m *meter) endStrays() (used time.Duration) {
	for _, pid := range m.children(os.Getpid()) {
		if slices.ContainsFunc(m.site.sshds, func(c *exec.Cmd) bool { return c.Process.Pid == pid }) {
			continue
		}
		_ = syscall.Kill(pid, syscall.SIGTERM) // it may have ended already
		var ws syscall.WaitStatus
		var u syscall.Rusage
		if _, err := syscall.Wait4(pid, &ws, 0, &u); err == nil {
			used += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return used
}

// settle waits until no sshd serves a session.
func (m *meter) settle() {
	for end := time.Now().Add(settlePatience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		busy := false
		for _, cmd := range m.site.sshds {
			busy = busy || len(m.children(cmd.Process.Pid)) > 0
		}
		if !busy {
			return
		}
	}
}

// children lists the children of a process.
func (m *meter) children(pid int) (list []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is well-formed
	for _, f := range files {
		text, _ := os.ReadFile(f) // a thread may have ended
		for _, w := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(w); err == nil {
				list = append(list, child)
			}
		}
	}
	return list
}

// nodesCPU returns the CPU time of the sshds and of their children that ended.
func (m *meter) nodesCPU() (used time.Duration) {
	for _, cmd := range m.site.sshds {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			continue
		}
		// utime, stime, cutime and cstime are fields 14 to 17; the name, field 2,
		// may hold blanks (proc_pid_stat(5)).
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		for i := 14 - 3; i <= 17-3 && i < len(fields); i++ {
			ticks, _ := strconv.ParseInt(fields[i], 10, 64)
			used += time.Duration(ticks) * time.Second / userHZ
		}
	}
	return used
}
