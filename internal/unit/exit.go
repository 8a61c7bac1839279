package unit

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// How a process ended, as property ExecMainCode gives it: si_code of waitid(2).
const (
	cldExited = 1
	cldKilled = 2
	cldDumped = 3
)

// exitExec is the status that systemd gives a process whose program could not be
// executed.
const exitExec = 203

// exitStatus returns an exit status with systemd's name for it, if it is one of
// those that systemd itself sets before the program runs: systemd.exec(5),
// "Process Exit Codes".
func exitStatus(n int) string {
	names := [...]string{
		"CHDIR", "NICE", "FDS", "EXEC", "MEMORY", "LIMITS", "OOM_ADJUST", "SIGNAL_MASK", "STDIN", "STDOUT", // 200
		"CHROOT", "IOPRIO", "TIMERSLACK", "SECUREBITS", "SETSCHEDULER", "CPUAFFINITY", "GROUP", "USER", "CAPABILITIES", "CGROUP", // 210
		"SETSID", "CONFIRM", "STDERR", "", "PAM", "NETWORK", "NAMESPACE", "NO_NEW_PRIVILEGES", "SECCOMP", "SELINUX_CONTEXT", // 220
		"PERSONALITY", "APPARMOR_PROFILE", "ADDRESS_FAMILIES", "RUNTIME_DIRECTORY", "", "CHOWN", "SMACK_PROCESS_LABEL", "KEYRING", "STATE_DIRECTORY", "CACHE_DIRECTORY", // 230
		"LOGS_DIRECTORY", "CONFIGURATION_DIRECTORY", "NUMA_POLICY", "CREDENTIALS", "", "BPF", // 240
	}
	if i := n - 200; i >= 0 && i < len(names) && names[i] != "" {
		return fmt.Sprintf("%d/%s", n, names[i])
	}
	return fmt.Sprint(n)
}

// signalName returns the name of signal n.
func signalName(n int) string {
	if s := unix.SignalName(unix.Signal(n)); s != "" {
		return s
	}
	return fmt.Sprintf("signal %d", n)
}
