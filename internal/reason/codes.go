package reason

// Outcomes that are not failures.
const (
	Ready Code = "ready" // etcd is installed and was seen active twice in a row
)

// Outcomes of any command.
const (
	Usage            Code = "usage"
	Internal         Code = "internal-error"
	Interrupted      Code = "interrupted"
	OutputUnwritable Code = "output-unwritable" // the answer is known, and could not be told
)

// Outcomes of the node agent's own conditions.
const (
	SetupRunning    Code = "setup-running"    // another setup holds the lock
	NotPermitted    Code = "not-permitted"    // the agent lacks a right it needs
	StateUnreadable Code = "state-unreadable" // there is no state of a setup, or it cannot be read
)

// Outcomes of looking for the ISO.
const (
	ISONotFound    Code = "iso-not-found"
	ISONoDrive     Code = "iso-no-drive"
	ISOUnreadable  Code = "iso-unreadable"
	ISODamaged     Code = "iso-damaged"
	ArchiveMissing Code = "archive-missing"
)

// Outcomes of asking an image for files.
const (
	Included      Code = "included"       // the file asked for is on the ISO
	FileMissing   Code = "file-missing"   // a file other than the etcd archive is not on the ISO
	NotISO        Code = "iso-not-iso"    // whatever it is, it is no ISO 9660 image
	ISOTruncated  Code = "iso-truncated"  // the image is shorter than what it describes
	ISOIncomplete Code = "iso-incomplete" // not, or not wholly, on its storage yet
	NoISOs        Code = "no-isos"        // nothing to look at
)

// Outcomes of reaching an image.
const (
	SourceMissing      Code = "source-missing"
	SourceDenied       Code = "source-denied"
	SourceUnreachable  Code = "source-unreachable"
	SourceStalled      Code = "source-stalled" // a read did not end in time
	SourceChanged      Code = "source-changed" // became another one while it was read
	SourceNoRanges     Code = "source-no-ranges"
	SourceBadAnswer    Code = "source-bad-answer" // a server's answer is not what was asked for
	SourceUnsupported  Code = "source-unsupported"
	DownloadUnwritable Code = "download-unwritable"
)

// Outcomes of keeping answers.
const (
	AnswersBusy       Code = "answers-busy" // another process has the file
	AnswersDamaged    Code = "answers-damaged"
	AnswersNewer      Code = "answers-newer" // written by a newer version
	AnswersUnwritable Code = "answers-unwritable"
)

// Outcomes of a cluster request, besides what is known of the ISO.
const (
	NotAsked       Code = "no-etcd-nodes-asked" // the request has no etcd nodes: nothing is looked at
	AdmitUnchecked Code = "admitted-unchecked"  // allowed since nobody could tell
	NoCopy         Code = "iso-no-copy"         // no copy of the ISO in the zone asked for
	DirectDownload Code = "iso-direct-download" // never on secondary storage
	ListenFailed   Code = "listen-failed"
	Unauthorized   Code = "unauthorized" // of the daemon's API
)

// Outcomes of verifying the etcd archive.
const (
	ArchiveUnreadable    Code = "archive-unreadable" // the medium failed while it was read
	ArchiveEmpty         Code = "archive-empty"
	ArchiveNotGzip       Code = "archive-not-gzip"
	ArchiveTruncated     Code = "archive-truncated"
	ArchiveChecksum      Code = "archive-checksum" // gzip's CRC-32 or length does not match
	ArchiveTarDamaged    Code = "archive-tar-damaged"
	ArchiveNoEnd         Code = "archive-no-end"
	ArchiveNoEtcd        Code = "archive-no-etcd"
	ArchiveTwoEtcd       Code = "archive-two-etcd"
	ArchiveNotELF        Code = "archive-not-elf"
	ArchiveWrongArch     Code = "archive-wrong-arch"
	ArchiveNotExecutable Code = "archive-not-executable"
	ArchiveUnsafeName    Code = "archive-unsafe-name"
	ArchiveTooLarge      Code = "archive-too-large"
	ArchiveDigest        Code = "archive-digest" // SHA-256 is not the one expected
)

// Outcomes of placing the binaries.
const (
	NoSpace        Code = "no-space"         // for the binaries or for etcd's first WAL files
	BinDirReadOnly Code = "bin-dir-readonly" // the directory for the binaries cannot be written
	BinNoExec      Code = "bin-noexec"       // mounted noexec, or forbidden by a security module
	BinCannotRun   Code = "bin-cannot-run"   // the staged etcd does not run on this machine
	InstallFailed  Code = "install-failed"
)

// Outcomes of enabling and starting the unit.
const (
	BusUnreachable   Code = "bus-unreachable" // systemd cannot be asked
	UnitMissing      Code = "unit-missing"
	UnitMasked       Code = "unit-masked"
	UnitBadSetting   Code = "unit-bad-setting"
	UnitEnableFailed Code = "unit-enable-failed"
	UnitStartFailed  Code = "unit-start-failed" // the start job ended with a result other than done
	UnitStartTimeout Code = "unit-start-timeout"
	UnitFailed       Code = "unit-failed"   // the service ended and stays down
	UnitFlapping     Code = "unit-flapping" // it is restarted again and again
	UnitNotActive    Code = "unit-not-active"
)

// Faults of etcd itself, told by what is on the machine before the start or by
// its last log lines after it.
const (
	PortInUse           Code = "port-in-use"
	AddressNotLocal     Code = "address-not-local"
	StaleData           Code = "stale-data"
	AlreadyBootstrapped Code = "already-bootstrapped"
	FlagRemoved         Code = "etcd-flag-removed"
	DataDirDenied       Code = "data-dir-denied"
	UnsupportedArch     Code = "etcd-unsupported-arch"
	DataDamaged         Code = "data-damaged"
)

// Outcomes of looking at a node over SSH.
const (
	NoNodes           Code = "no-nodes"     // nothing to look at
	NodeResolve       Code = "node-resolve" // its name has no address
	NodeUnreachable   Code = "node-unreachable"
	SSHHandshake      Code = "ssh-handshake"
	SSHAuthRefused    Code = "ssh-auth-refused"
	SSHHostKeyChanged Code = "ssh-host-key-changed"
	SSHHostKeyUnknown Code = "ssh-host-key-unknown"
	SSHKeyUnusable    Code = "ssh-key-unusable" // a private key of ours that cannot be used
	ProbeUnreadable   Code = "probe-unreadable" // the node answered, but not in a form that says anything
	NodeBooting       Code = "node-booting"
	NotSetUp          Code = "not-set-up"   // cloud-init is done, and there is no unit and no marker
	SetupFailed       Code = "setup-failed" // the node's marker says so, without a code
	Undecided         Code = "undecided"    // the deadline passed before two checks agreed
)

// Outcomes of asking etcd itself.
const (
	HealthUnreadable  Code = "health-unreadable"
	HealthUnhealthy   Code = "health-unhealthy"
	HealthSplit       Code = "health-split" // members of different clusters, or without one leader
	HealthNoQuorum    Code = "health-no-quorum"
	HealthMemberCount Code = "health-member-count"
	HealthAlarm       Code = "health-alarm"
)

// table is the one place where a code gets its class, status and words.
var table = []Info{
	{Ready, OK, ExitYes, "etcd is ready", "nothing to do"},

	{Usage, Permanent, ExitUsage, "usage", "run the command with --help"},
	{Internal, Unknown, ExitInternal, "internal error", "this is a bug; report it with the log"},
	{OutputUnwritable, Unknown, ExitUnknown, "output cannot be written", "check where standard output goes"},
	{Interrupted, Transient, ExitInterrupted, "interrupted", "run the command again"},

	{SetupRunning, Transient, ExitDeadline, "another setup is running", "wait for it, or look at its log with 'journalctl'"},
	{NotPermitted, Permanent, ExitNo, "not permitted", "run etcd-nodeagent as root"},

	{StateUnreadable, Unknown, ExitUnknown, "no state", "run 'etcd-nodeagent setup', or see its log with 'journalctl'"},

	{ISONotFound, Transient, ExitDeadline, "no Kubernetes ISO", "attach the Kubernetes binaries ISO to this VM, then run 'etcd-nodeagent setup' again"},
	{ISONoDrive, Transient, ExitDeadline, "no drive for the ISO", "use a kernel with drivers for the VM's CD drive (a cloud kernel may lack ata_piix or ahci), or attach the ISO as a disk"},
	{ISOUnreadable, Unknown, ExitUnknown, "ISO cannot be read", "detach and attach the ISO; check the secondary storage that serves it"},
	{ISODamaged, Unknown, ExitUnknown, "ISO is damaged", "register the ISO again from a complete copy"},
	{ArchiveMissing, Permanent, ExitNo, "etcd archive missing", "rebuild the ISO with an etcd version (last argument of create-kubernetes-binaries-iso.sh) and register it"},

	{Included, OK, ExitYes, "on the ISO", "nothing to do"},
	{FileMissing, Permanent, ExitNo, "file missing", "list the image with 'etcd-fleet iso ls'"},
	{NotISO, Unknown, ExitUnknown, "not an ISO image", "look at the file; a failed download often leaves an error page"},
	{ISOTruncated, Unknown, ExitUnknown, "truncated", "copy or register the ISO again"},
	{ISOIncomplete, Transient, ExitUnknown, "ISO is not complete", "wait for the download, or see the ISO's status in CloudStack"},
	{NoISOs, Permanent, ExitUsage, "no ISOs", "name ISO files, directories that hold some, block devices or URLs"},

	{SourceMissing, Unknown, ExitUnknown, "not found", "check the name, and that its storage is mounted; an ISO that is gone from secondary storage must be registered again"},
	{SourceDenied, Permanent, ExitUnknown, "access refused", "check permissions; for a URL see --netrc and --header"},
	{SourceUnreachable, Transient, ExitUnknown, "cannot be reached", "check the storage or server, and the network between"},
	{SourceStalled, Transient, ExitUnknown, "no answer in time", "check the storage or server; a hung NFS mount needs its server back"},
	{SourceChanged, Transient, ExitUnknown, "changed while it was read", "run the command again when nobody writes to it"},
	{SourceNoRanges, Permanent, ExitUnknown, "server gives no ranges", "read all of it with 'etcd-fleet iso check --download'"},
	{SourceBadAnswer, Unknown, ExitUnknown, "server's answer cannot be used", "see what lies between: a proxy or cache may change answers"},
	{SourceUnsupported, Permanent, ExitUnknown, "kind of storage not supported", "name a path where it is mounted, or an http or https URL"},
	{DownloadUnwritable, Permanent, ExitUnknown, "download cannot be kept", "free some space, or choose another --temp-dir"},

	{AnswersBusy, Transient, ExitUnknown, "answers are in use", "try again; 'fuser' tells who holds the file"},
	{AnswersDamaged, Permanent, ExitUnknown, "answers are damaged", "run the command with --rebuild to set the file aside and begin anew"},
	{AnswersNewer, Permanent, ExitUnknown, "answers are of a newer version", "use that version of etcd-fleet, or another --answers file"},
	{AnswersUnwritable, Unknown, ExitUnknown, "answers cannot be kept", "check space, owner and mode of the file, or choose another with --answers"},

	{NotAsked, OK, ExitYes, "no etcd nodes asked for", "nothing to do"},
	{AdmitUnchecked, OK, ExitYes, "allowed, unchecked", "check the ISO with 'etcd-fleet iso check'"},
	{NoCopy, Unknown, ExitUnknown, "no copy of the ISO", "name the stores that may have it, with --store or in the configuration; see /api/v1/isos of etcd-fleet watch for what they hold"},
	{DirectDownload, Unknown, ExitUnknown, "ISO is downloaded by the hosts directly", "check the URL it is downloaded from"},
	{Unauthorized, Permanent, ExitUsage, "not authorized", "send the token of token_file as 'Authorization: Bearer TOKEN', or ask on the unix socket"},
	{ListenFailed, Permanent, ExitUsage, "cannot listen", "check the listen address in the configuration"},

	{ArchiveUnreadable, Unknown, ExitUnknown, "etcd archive cannot be read", "detach and attach the ISO; check the secondary storage that serves it"},
	{ArchiveEmpty, Permanent, ExitNo, "etcd archive is empty", "the download failed when the ISO was built; rebuild the ISO"},
	{ArchiveNotGzip, Permanent, ExitNo, "etcd archive is not gzip", "the download failed when the ISO was built; rebuild the ISO"},
	{ArchiveTruncated, Permanent, ExitNo, "etcd archive is truncated", "the download broke off when the ISO was built; rebuild the ISO"},
	{ArchiveChecksum, Permanent, ExitNo, "etcd archive is corrupt", "rebuild the ISO and compare checksums on the way to the cloud"},
	{ArchiveTarDamaged, Permanent, ExitNo, "etcd archive has a damaged tar", "rebuild the ISO with an archive from an etcd release"},
	{ArchiveNoEnd, Permanent, ExitNo, "etcd archive has no end marker", "the archive was cut before it was compressed; rebuild the ISO with one from an etcd release"},
	{ArchiveNoEtcd, Permanent, ExitNo, "etcd archive holds no etcd", "rebuild the ISO with an archive from an etcd release"},
	{ArchiveTwoEtcd, Permanent, ExitNo, "etcd archive holds etcd more than once", "rebuild the ISO with an archive from an etcd release"},
	{ArchiveNotELF, Permanent, ExitNo, "etcd in the archive is not a Linux program", "rebuild the ISO with an archive from an etcd release for Linux"},
	{ArchiveWrongArch, Permanent, ExitNo, "etcd in the archive is for another architecture", "use an ISO built for the node's architecture"},
	{ArchiveNotExecutable, Permanent, ExitNo, "etcd in the archive is not an executable", "rebuild the ISO with an archive from an etcd release"},
	{ArchiveUnsafeName, Permanent, ExitNo, "etcd archive has an unsafe name", "do not use this archive; rebuild the ISO with one from an etcd release"},
	{ArchiveTooLarge, Permanent, ExitNo, "etcd archive is too large", "do not use this archive; rebuild the ISO with one from an etcd release"},
	{ArchiveDigest, Permanent, ExitNo, "etcd archive has another digest", "compare the expected SHA-256 with the release's SHA256SUMS; rebuild the ISO"},

	{NoSpace, Permanent, ExitNo, "not enough space", "free some space or give the etcd nodes a larger root disk"},
	{BinDirReadOnly, Permanent, ExitNo, "binaries directory cannot be written", "make the file system writable or choose another --bin-dir"},
	{BinNoExec, Permanent, ExitNo, "binaries directory does not allow programs", "mount it without noexec, or allow it in the security module"},
	{BinCannotRun, Permanent, ExitNo, "etcd does not run on this machine", "run the binary by hand to see why"},
	{InstallFailed, Permanent, ExitNo, "cannot install etcd", "see the cause; then run 'etcd-nodeagent setup' again"},

	{BusUnreachable, Unknown, ExitUnknown, "systemd cannot be asked", "check 'systemctl status dbus', then run 'etcd-nodeagent setup' again"},
	{UnitMissing, Permanent, ExitNo, "unit not found", "write the unit file (cloud-init's write_files does), then run 'etcd-nodeagent setup' again"},
	{UnitMasked, Permanent, ExitNo, "unit is masked", "run 'systemctl unmask' on it, then 'etcd-nodeagent setup' again"},
	{UnitBadSetting, Permanent, ExitNo, "unit file is invalid", "run 'systemd-analyze verify' on the unit file"},
	{UnitEnableFailed, Permanent, ExitNo, "cannot enable the unit", "run 'systemctl enable' on it to see why"},
	{UnitStartFailed, Permanent, ExitNo, "cannot start the unit", "see 'systemctl status' and 'journalctl -u' of the unit"},
	{UnitStartTimeout, Transient, ExitDeadline, "etcd did not become active in time", "check that the other etcd members run and can be reached on port 2380"},
	{UnitFailed, Permanent, ExitNo, "etcd failed", "see 'journalctl -u' of the unit"},
	{UnitFlapping, Permanent, ExitNo, "etcd keeps restarting", "see 'journalctl -u' of the unit"},
	{UnitNotActive, Permanent, ExitNo, "etcd is not running", "start the unit, or run 'etcd-nodeagent setup'"},

	{PortInUse, Permanent, ExitNo, "port in use", "stop the process that holds the port"},
	{AddressNotLocal, Permanent, ExitNo, "address is not on this machine", "give etcd an address that 'ip addr' lists here"},
	{StaleData, Permanent, ExitNo, "data directory of another member or cluster", "move the old data directory away if its data is not needed"},
	{AlreadyBootstrapped, Permanent, ExitNo, "etcd member was already bootstrapped", "remove the member from the cluster and add it again, or create the cluster anew"},
	{FlagRemoved, Permanent, ExitNo, "etcd refuses a flag of its unit", "remove the flag from the unit file, or use an etcd version that still knows it"},
	{DataDirDenied, Permanent, ExitNo, "etcd cannot use its data directory", "check owner, mode and file system of the data directory"},
	{UnsupportedArch, Permanent, ExitNo, "etcd refuses this architecture", "use etcd 3.5 or later, or set ETCD_UNSUPPORTED_ARCH in the unit"},
	{DataDamaged, Permanent, ExitNo, "etcd's data is damaged", "restore the member from a snapshot, or remove its data and add it again"},

	{NoNodes, Permanent, ExitUsage, "no nodes", "name hosts as arguments, with --inventory, or as lines on standard input with '-'"},
	{NodeResolve, Unknown, ExitUnknown, "node's name cannot be resolved", "check the name, or use its address"},
	{NodeUnreachable, Transient, ExitUnknown, "node cannot be reached", "check that the node runs, and the port forwarding and firewall rule for its SSH port"},
	{SSHHandshake, Transient, ExitUnknown, "SSH handshake failed", "see 'ssh -v' to the same port; the node's sshd may still be starting"},
	{SSHAuthRefused, Permanent, ExitUnknown, "login refused", "use the key of the management server (its user's ~/.ssh/id_rsa) with -i"},
	{SSHHostKeyChanged, Permanent, ExitUnknown, "host key changed", "if the node was created anew, remove its old key from the known_hosts file; otherwise find out who answers"},
	{SSHHostKeyUnknown, Permanent, ExitUnknown, "host key is not known", "add the key to known_hosts, pin it in the inventory, or use --host-keys accept-new"},
	{SSHKeyUnusable, Permanent, ExitUnknown, "private key cannot be used", "name a readable key with -i; an encrypted one needs a terminal or an agent (--agent)"},
	{ProbeUnreadable, Unknown, ExitUnknown, "node gave no usable answer", "log in by hand and run 'systemctl status etcd'"},
	{NodeBooting, Transient, ExitDeadline, "node is still booting", "wait longer, or look at the VM's console"},
	{NotSetUp, Permanent, ExitNo, "node was not set up", "see /var/log/cloud-init-output.log on the node; its user data did not write an etcd unit"},
	{SetupFailed, Permanent, ExitNo, "setup failed on the node", "see /home/cloud/etcd-setup-failed and 'journalctl -u etcd-nodeagent' on the node"},
	{Undecided, Transient, ExitDeadline, "undecided at the deadline", "wait longer (--timeout), or log in and run 'systemctl status etcd'"},

	{HealthUnreadable, Unknown, ExitUnknown, "etcd cannot be asked", "check that etcd listens on 127.0.0.1 and, with TLS, the --health-* files"},
	{HealthUnhealthy, Transient, ExitNo, "etcd is not healthy", "see 'journalctl -u etcd' on the node"},
	{HealthSplit, Permanent, ExitNo, "etcd members do not form one cluster", "compare --initial-cluster and the cluster IDs of the nodes"},
	{HealthNoQuorum, Transient, ExitNo, "etcd has no quorum", "start the members that are down"},
	{HealthMemberCount, Permanent, ExitNo, "etcd has another number of members", "compare 'etcdctl member list' with the nodes asked for"},
	{HealthAlarm, Permanent, ExitNo, "etcd raised an alarm", "see 'etcdctl alarm list'"},
}
