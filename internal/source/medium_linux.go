package source

import (
	"errors"

	"golang.org/x/sys/unix"
)

// noMedium reports whether a drive says that it is empty.
func noMedium(err error) bool { return errors.Is(err, unix.ENOMEDIUM) || errors.Is(err, unix.ENXIO) }
