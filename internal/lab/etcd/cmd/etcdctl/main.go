// Command etcdctl is etcd's client, built for the test hosts.
package main

import "go.etcd.io/etcd/etcdctl/v3/ctlv3"

func main() { ctlv3.MustStart() }
