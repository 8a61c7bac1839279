// Package sshnode looks at one etcd node over SSH: it dials with deadlines that
// hold, checks host keys, runs one fixed command and turns its answer into an
// Observation. It decides nothing; that is the caller's part.
//
// # Deadlines
//
// golang.org/x/crypto/ssh bounds only the TCP connect, and several of its calls
// take no context. So one rule holds for every stage, from the connect to the
// closing of a channel: when its time is over, or the context ends, the TCP
// connection at the bottom is closed, which makes every call above it return.
//
// # Host keys
//
// Keys are looked up as OpenSSH does: in the user's and the system's
// known_hosts files, which are only read, and in a file of our own, to which
// new keys are added, and only after a login succeeded. The algorithms that are
// offered begin with those of the keys that are known, or else a server with
// several keys could answer with one that is not known.
//
// # Text from the other side
//
// Nothing that a server sent reaches an error or an Observation without having
// gone through reason.Line, and nothing is stored that was not bounded first.
package sshnode
