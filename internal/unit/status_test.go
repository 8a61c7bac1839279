package unit

import (
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/stability"
)

// etcdArgv is the command of the etcd.service that CloudStack writes.
func etcdArgv() []string {
	return strings.Fields("/opt/bin/etcd --name etcd-1 --initial-advertise-peer-urls http://10.1.1.11:2380 --listen-peer-urls http://10.1.1.11:2380" +
		" --advertise-client-urls http://10.1.1.11:2379 --listen-client-urls http://10.1.1.11:2379,http://127.0.0.1:2379 --initial-cluster-token etcd-cluster-1" +
		" --initial-cluster etcd-1=http://10.1.1.11:2380,etcd-2=http://10.1.1.12:2380,etcd-3=http://10.1.1.13:2380 --initial-cluster-state new")
}

// systemd219 has what systemd 219 (CentOS 7) knows: neither InvocationID (232)
// nor NRestarts (235).
func systemd219() properties {
	return properties{
		"LoadState": "loaded", "LoadError": []any{"", ""}, "ActiveState": "active", "SubState": "running",
		"Result": "success", "UnitFileState": "enabled", "FragmentPath": "/etc/systemd/system/etcd.service",
		"Type": "simple", "MainPID": uint32(1234), "ExecMainPID": uint32(1234), "ExecMainCode": int32(0), "ExecMainStatus": int32(0),
		"ActiveEnterTimestampMonotonic": uint64(52_000_111), "RestartUSec": uint64(5_000_000),
		"ExecStart":        [][]any{{"/opt/bin/etcd", etcdArgv(), false, uint64(1), uint64(2), uint64(0), uint64(0), uint32(1234), int32(0), int32(0)}},
		"WorkingDirectory": "", "User": "", "Environment": []string{}, "NeedDaemonReload": false,
		"Job": []any{uint32(0), dbus.ObjectPath("/")}, "ConditionResult": true, "ControlGroup": "/system.slice/etcd.service",
	}
}

// systemd239 has the two besides (RHEL 8); Type=exec came with 240.
func systemd239() properties {
	p := systemd219()
	p["InvocationID"] = []byte{0x96, 0x48, 0x33, 0x7e, 0x46, 0xf3, 0x4c, 0x52, 0xbe, 0xaf, 0x5e, 0x96, 0x45, 0xe3, 0x25, 0xe5}
	p["NRestarts"] = uint32(2)
	return p
}

// systemd252 is Debian 12, with a unit that cannot be executed.
func systemd252() properties {
	p := systemd239()
	for k, v := range map[string]any{
		"Type": "exec", "ActiveState": "activating", "SubState": "auto-restart", "Result": "exit-code", "MainPID": uint32(0),
		"ExecMainCode": int32(1), "ExecMainStatus": int32(203), "ActiveEnterTimestampMonotonic": uint64(0),
		"RestartMode": "normal", "ControlGroup": "", "Environment": []string{"ETCD_NAME=x"}, "NeedDaemonReload": true,
	} {
		p[k] = v
	}
	return p
}

func TestDecode(t *testing.T) {
	const id = "9648337e46f34c52beaf5e9645e325e5"
	want219 := Status{
		Name: "etcd.service", LoadState: "loaded", ActiveState: "active", SubState: "running", Result: "success", UnitFileState: "enabled",
		FragmentPath: "/etc/systemd/system/etcd.service", ActiveEnter: 52_000_111, Type: "simple", MainPID: 1234, NRestarts: -1,
		RestartDelay: 5 * time.Second, ExecStart: etcdArgv(), Environment: []string{}, ControlGroup: "/system.slice/etcd.service",
		job: job{known: true}, conditionMet: yes,
	}
	want239 := want219
	want239.InvocationID, want239.NRestarts = id, 2
	want252 := want239
	want252.Type, want252.ActiveState, want252.SubState, want252.Result = "exec", "activating", "auto-restart", "exit-code"
	want252.MainPID, want252.ExecMainCode, want252.ExecMainStatus, want252.ActiveEnter = 0, 1, 203, 0
	want252.ControlGroup, want252.Environment, want252.NeedDaemonReload = "", []string{"ETCD_NAME=x"}, true

	tests := []struct {
		name   string
		props  properties
		want   Status
		sample stability.Sample
		words  string
	}{
		{"systemd 219", systemd219(), want219, stability.Sample{State: stability.Active, Restarts: -1, MainPID: 1234, ActiveSince: 52_000_111, Detail: "running"}, "active (running)"},
		{"systemd 239", systemd239(), want239, stability.Sample{State: stability.Active, Invocation: id, Restarts: 2, MainPID: 1234, ActiveSince: 52_000_111, Detail: "running"}, "active (running)"},
		{"systemd 252", systemd252(), want252, stability.Sample{State: stability.Activating, Invocation: id, Restarts: 2,
			Detail: "auto-restart, result exit-code, status 203/EXEC: cannot execute /opt/bin/etcd"},
			"activating (auto-restart, result exit-code, status 203/EXEC: cannot execute /opt/bin/etcd)"},
		{"nothing", nil, Status{Name: "etcd.service", NRestarts: -1}, stability.Sample{Restarts: -1}, "unknown"},
		{"every type wrong", wrongTypes(systemd252()), Status{Name: "etcd.service", NRestarts: -1}, stability.Sample{Restarts: -1}, "unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := decode("etcd.service", tt.props)
			if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(Status{}, job{})); d != "" {
				t.Errorf("status (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.sample, got.Sample(time.Time{}, "")); d != "" {
				t.Errorf("sample (-want +got):\n%s", d)
			}
			if got := got.String(); got != tt.words {
				t.Errorf("got %q, want %q", got, tt.words)
			}
		})
	}
}

// wrongTypes gives every property a type that none has.
func wrongTypes(p properties) properties {
	for k := range p {
		p[k] = map[string]float64{"x": 1}
	}
	return p
}

func TestStates(t *testing.T) {
	tests := []struct {
		active, sub string
		want        stability.State
	}{
		{"active", "running", stability.Active},
		{"active", "exited", stability.Active},
		{"reloading", "reload", stability.Active},
		{"activating", "start", stability.Activating},
		{"activating", "auto-restart", stability.Activating},
		{"activating", "auto-restart-queued", stability.Activating},
		{"failed", "failed-before-auto-restart", stability.Activating}, // systemd 254
		{"inactive", "dead-before-auto-restart", stability.Activating},
		{"deactivating", "stop-sigterm", stability.Deactivating},
		{"failed", "failed", stability.Failed},
		{"inactive", "dead", stability.Inactive},
		{"", "", stability.Unknown},
		{"maintenance", "", stability.Unknown},
	}
	for _, tt := range tests {
		if got := (Status{ActiveState: tt.active, SubState: tt.sub}).state(); got != tt.want {
			t.Errorf("%s (%s): got %s, want %s", tt.active, tt.sub, got, tt.want)
		}
	}
}

func TestCheck(t *testing.T) {
	tests := []struct {
		st   Status
		want reason.Code
	}{
		{Status{LoadState: "loaded"}, reason.Ready},
		{Status{}, reason.Ready}, // cannot tell
		{Status{LoadState: "not-found"}, reason.UnitMissing},
		{Status{LoadState: "masked"}, reason.UnitMasked},
		{Status{LoadState: "loaded", UnitFileState: "masked-runtime"}, reason.UnitMasked},
		{Status{LoadState: "bad-setting", LoadError: "x"}, reason.UnitBadSetting},
		{Status{LoadState: "error", LoadError: "x"}, reason.UnitBadSetting},
	}
	for _, tt := range tests {
		if err := tt.st.Check(); reason.Of(err) != tt.want {
			t.Errorf("%+v: got %v, want %s", tt.st, err, tt.want)
		}
	}
}

func TestEnded(t *testing.T) {
	tests := []struct {
		code, status int
		want         string
	}{
		{0, 0, ""}, {1, 0, ""}, {1, 2, "status 2"}, {1, 203, "status 203/EXEC"}, {1, 200, "status 200/CHDIR"}, {1, 226, "status 226/NAMESPACE"},
		{1, 245, "status 245/BPF"}, {1, 223, "status 223"}, {1, 255, "status 255"}, {2, 9, "killed by SIGKILL"}, {3, 6, "killed by SIGABRT with a core dump"}, {2, 99, "killed by signal 99"},
	}
	for _, tt := range tests {
		if got := (Status{ExecMainCode: tt.code, ExecMainStatus: tt.status}).ended(); got != tt.want {
			t.Errorf("%d %d: got %q, want %q", tt.code, tt.status, got, tt.want)
		}
	}
}
