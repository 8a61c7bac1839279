// Package unit watches over one systemd unit of this machine: it reloads,
// enables, starts and observes it over D-Bus, reads its journal, and says before
// the start what will keep etcd from running. No other package sees D-Bus.
//
// Three rules hold throughout. Every wait ends with its context, whatever
// systemd does. A call that failed, a lost signal and a lost bus are "could not
// tell": the state is read again, and never assumed. And a property that this
// systemd does not have, or that has another type than documented, is absent,
// not zero: systemd 219 knows neither InvocationID nor NRestarts.
package unit
