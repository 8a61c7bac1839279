package sshtest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
)

// session serves one session channel.
func (s *Server) session(ctx context.Context, nc ssh.NewChannel, user string, cfg Config) {
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer ch.Close()
	for r := range reqs {
		var exec struct{ Line string }
		if r.Type != "exec" || cfg.Fault == RefuseExec || ssh.Unmarshal(r.Payload, &exec) != nil {
			if r.WantReply {
				_ = r.Reply(false, nil)
			}
			continue
		}
		n := s.commands.Add(1)
		_ = r.Reply(true, nil)
		wg.Go(func() { answer(ctx, ch, cfg, Command{User: user, Line: exec.Line, N: n}) })
	}
	cancel() // the client closed the channel
}

// answer runs one command and closes its channel.
func answer(ctx context.Context, ch ssh.Channel, cfg Config, c Command) {
	switch cfg.Fault {
	case StallCommand:
		<-ctx.Done()
		return
	case EndlessOutput, EndlessStderr:
		var w io.Writer = ch
		if cfg.Fault == EndlessStderr {
			w = ch.Stderr()
		}
		for {
			if _, err := io.WriteString(w, strings.Repeat("y\n", 4<<10)); err != nil {
				return
			}
		}
	case NoExitStatus:
		ch.Close()
		return
	}
	var r Reply
	if cfg.Command == nil {
		r = Reply{Stderr: "sh: not found\n", Status: 127}
	} else {
		r = cfg.Command(ctx, c)
	}
	_, _ = io.WriteString(ch.Stderr(), r.Stderr)
	_, _ = io.WriteString(ch, r.Stdout)
	if r.Signal != "" {
		_, _ = ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Name  string
			Core  bool
			Error string
			Lang  string
		}{Name: r.Signal}))
	} else {
		_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(r.Status)}))
	}
	if cfg.Fault == NeverClose {
		<-ctx.Done()
	}
	ch.Close()
}

// forward serves one direct-tcpip channel (RFC 4254, section 7.2).
func forward(nc ssh.NewChannel) {
	var to struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(nc.ExtraData(), &to); err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, "malformed")
		return
	}
	c, err := net.Dial("tcp", net.JoinHostPort(to.Host, fmt.Sprint(to.Port)))
	if err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	ch, reqs, err := nc.Accept()
	if err != nil {
		c.Close()
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { ssh.DiscardRequests(reqs) })
	wg.Go(func() {
		_, _ = io.Copy(c, ch)
		c.Close()
	})
	_, _ = io.Copy(ch, c)
	ch.Close()
	c.Close()
	wg.Wait()
}

// Values are what a simulated node has to say to the fleet's probe.
type Values struct {
	BootID    string
	Hostname  string
	Clock     string            // as date +%s.%N writes it
	Marker    *string           // content of the failure marker; nil: none
	State     []byte            // content of the agent's state file; nil: none
	Unit      map[string]string // properties; nil: systemctl is missing
	CloudInit string            // "done", "running", "error", "disabled" or "not run"
}

// Active returns the properties of a unit that runs well.
func Active(invocation string, pid int, restarts int) map[string]string {
	return map[string]string{
		"LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "active", "SubState": "running",
		"Result": "success", "Type": "exec", "ExecMainCode": "0", "ExecMainStatus": "0",
		"NRestarts": fmt.Sprint(restarts), "MainPID": fmt.Sprint(pid), "InvocationID": invocation,
		"ActiveEnterTimestampMonotonic": "123456789", "RestartUSec": "5s",
	}
}

// ProbeOutput renders v as the probe command of internal/sshnode prints it.
func ProbeOutput(v Values) string {
	var b strings.Builder
	value := func(key, v string) {
		if v != "" {
			fmt.Fprintf(&b, "+%s %s\n", key, v)
		}
	}
	const absent = 40
	section := func(name, body string, status int) {
		fmt.Fprintf(&b, "<%s\n", name)
		for _, l := range strings.Split(body+fmt.Sprintf("\n%d", status), "\n") {
			fmt.Fprintf(&b, "=%s\n", l)
		}
		fmt.Fprintf(&b, ">%s\n", name)
	}
	file := func(name, body string, there bool) {
		if there {
			section(name, body, 0)
		} else {
			section(name, "", absent)
		}
	}
	b.WriteString("cks-etcd-probe 1\n")
	value("boot", v.BootID)
	value("host", v.Hostname)
	value("clock", v.Clock)
	if v.Marker != nil {
		section("marker", *v.Marker, 0)
	} else {
		section("marker", "", absent)
	}
	file("state", string(v.State), v.State != nil)
	if v.Unit == nil {
		section("unit", "sh: 1: systemctl: not found\n", 127)
	} else {
		var props strings.Builder
		for _, k := range slices.Sorted(maps.Keys(v.Unit)) {
			fmt.Fprintf(&props, "%s=%s\n", k, v.Unit[k])
		}
		section("unit", props.String(), 0)
	}
	status, result := `{"v1": {"stage": null}}`, `{"v1": {"errors": []}}`
	switch v.CloudInit {
	case "running":
		status = `{"v1": {"stage": "modules-final"}}`
	case "error":
		result = `{"v1": {"errors": ["('scripts-user', RuntimeError())"]}}`
	}
	file("ci-status", status, v.CloudInit != "not run" && v.CloudInit != "disabled")
	file("ci-result", result, v.CloudInit == "done" || v.CloudInit == "error")
	if v.CloudInit == "disabled" {
		value("cloud-init", "disabled")
	}
	b.WriteString("cks-etcd-probe 1 end\n")
	return b.String()
}
