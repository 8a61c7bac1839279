// Package lab gives tests and the demo real machines to work on: hosts with systemd as PID 1, their own system
// bus, journal, sshd and cloud-init, made of Linux namespaces on one kernel, with CD drives whose medium comes
// and goes while they run.
//
// Everything but this file carries the build tag lab and is for Linux; Up and all that follows needs root. Building
// images ([BuildISO], [EtcdArchive], [KubernetesISO]) needs none.
//
// # How it is kept clean
//
// Whatever a lab makes belongs to the process that made it, so that the kernel takes it back even after kill -9:
// the hosts die with the thread that started them (PR_SET_PDEATHSIG), network namespaces are nameless, loop
// devices clear themselves on last close, all mounts are made inside the hosts' own mount namespaces, and the
// cgroup2 hierarchy is reached through a mount that is attached nowhere. What can outlive a killed process is one
// directory and a few empty cgroups; [Sweep], which every Up calls, removes those of dead owners.
//
// # Use
//
// [Init] must be the first call of main or TestMain: a host's PID 1 starts as a copy of the calling program.
//
//	func TestMain(m *testing.M) { lab.Init(); os.Exit(m.Run()) }
//
//	func TestX(t *testing.T) {
//		l := lab.UpT(t)
//		h, err := l.Start(t.Context(), lab.HostOptions{Name: "n1"})
//		...
//	}
//
// What hosts share with the machine, and so cannot show: kernel, clock, /proc/sys (read-only, but each host has a
// boot_id of its own), block devices' names in /sys (a drive is loopN there, whatever its node in /dev is called).
// There is no udev. Device events of the machine reach every host's netlink socket, as they reach every network
// namespace.
package lab
