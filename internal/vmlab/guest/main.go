//go:build vm && linux

// Command guest runs in the VMs of internal/vmlab: as the initial RAM disk's init, and later as the test's hand and eye.
package main

import (
	"fmt"
	"os"
)

func main() {
	var err error
	if os.Getpid() == 1 {
		err = boot()
	} else {
		err = serve()
	}
	fmt.Fprintln(os.Stderr, "guest:", err)
	os.Exit(1)
}
