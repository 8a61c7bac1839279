package inventory

import (
	"errors"
	"os"
	"strings"
	"testing"
)

const (
	// The ed25519 key of testdata/host_keys.pub, and its fingerprint as
	// ssh-keygen prints it.
	testKey         = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKLxQYxSUrHetJfUd+ACSw0uXgTzwn5/qgW5WIW+y2u8"
	testFingerprint = "SHA256:nKKt3BK/OmVhwWcT+hiALGzVFNJ+MUxGeLZza2BBQR8"
)

// Keys made by ssh-keygen, one of each type.
func TestParseHostKey(t *testing.T) {
	b, err := os.ReadFile("testdata/host_keys.pub")
	if err != nil {
		t.Fatal(err)
	}
	keys := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(keys) != 5 {
		t.Fatalf("%d keys, want 5", len(keys))
	}
	for _, key := range keys {
		got, err := parseHostKey(key + " root@etcd1\n")
		if err != nil || got != key {
			t.Errorf("parseHostKey(%q) = %q, %v", key, got, err)
		}
		kind, text, _ := strings.Cut(key, " ")
		for _, bad := range []string{
			kind + " " + text[:len(text)-4],
			kind + " " + text + "AAAA",
			kind + " " + text[:40],
			"ssh-dss " + text,
			kind + "-cert-v01@openssh.com " + text,
			text,
			kind,
		} {
			if got, err := parseHostKey(bad); err == nil {
				t.Errorf("parseHostKey(%q) = %q, want an error", bad, got)
			}
		}
	}
	for _, fp := range []string{testFingerprint, testFingerprint + "="} {
		if got, err := parseHostKey(fp); err != nil || got != testFingerprint {
			t.Errorf("parseHostKey(%q) = %q, %v", fp, got, err)
		}
	}
}

func TestParseHostKeyRefuses(t *testing.T) {
	for _, c := range []struct{ key, want string }{
		{"", "TYPE BASE64"},
		{"SHA256:", "43 characters"},
		{testFingerprint[:len(testFingerprint)-1], "43 characters"},
		{testFingerprint + "A", "43 characters"},
		{"MD5:16:27:ac:a5:76:28:2d:36:63:1b:56:4d:eb:df:a6:48", "MD5"},
		{"16:27:ac:a5:76:28:2d:36:63:1b:56:4d:eb:df:a6:48", "MD5"},
		{"etcd1.example " + testKey, "ssh-keyscan"},
		{"ssh-ed25519 ????", "not base64"},
		{"ssh-ed25519 /////w==", "damaged"},
		{"ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIKLxQYxSUrHetJfUd+ACSw0uXgTzwn5/qgW5WIW+y2u8", `says that it is "ssh-ed25519"`},
	} {
		if got, err := parseHostKey(c.key); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("parseHostKey(%q) = %q, %v; want an error with %q", c.key, got, err, c.want)
		}
	}
	_, err := parseHostKey("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNza\n")
	if !errors.Is(err, errPrivateKey) {
		t.Errorf("a private key: %v", err)
	}
}
