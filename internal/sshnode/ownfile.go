package sshnode

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// hashedFor says whether a hashed host field is that of host: "|1|", the salt
// in base64, "|", and the HMAC-SHA1 of the name under it (sshd(8), "SSH_KNOWN_HOSTS
// FILE FORMAT").
func hashedFor(field, host string) bool {
	parts := strings.Split(field, "|")
	if len(parts) != 4 {
		return false
	}
	salt, err1 := base64.StdEncoding.DecodeString(parts[2])
	sum, err2 := base64.StdEncoding.DecodeString(parts[3])
	if err1 != nil || err2 != nil {
		return false
	}
	mac := hmac.New(sha1.New, salt)
	mac.Write([]byte(host))
	return hmac.Equal(mac.Sum(nil), sum)
}

// lockFile takes the exclusive lock of the file, which it creates, and waits
// for it at most that long. The lock goes with the process that holds it.
func lockFile(path string, wait time.Duration) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	const step = 10 * time.Millisecond
	for waited := time.Duration(0); ; waited += step {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || waited >= wait {
			f.Close()
			return nil, fmt.Errorf("cannot lock %s in %v: %w", path, wait, err)
		}
		time.Sleep(step)
	}
}

// replaceFile puts a file with that content in the place of path, whole or not
// at all, also when the machine stops in between. It keeps the mode.
func replaceFile(path string, content []byte) (err error) {
	mode := os.FileMode(0o600)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".known_hosts-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(content); err != nil {
		return err
	}
	if err = f.Chmod(mode); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
