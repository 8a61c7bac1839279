// Package source opens one ISO image, wherever it is, as an [io.ReaderAt] with
// an identity: a regular file, a block device, or an http or https URL.
//
// Nothing here waits for ever. Each file system call has a deadline, and one that
// hangs is left behind (package fscall), counted by [Opener.Lost], while the caller
// goes on with the code source-stalled. Requests to servers end with the same
// deadline.
//
// A URL is read by ranges, all of one representation: the first answer pins its
// entity tag or modification time, and its length, and an answer that belongs
// to another one fails with source-changed. Two versions are never mixed.
//
// Every error that the methods return for something outside of the program is a
// *reason.Error.
package source
