//go:build !lab

package main

// labInit is the lab's hook at the start of a test binary.
func labInit() {}
