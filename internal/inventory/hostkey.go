package inventory

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// privateKey stands in the first line of every private key in PEM.
const privateKey = "PRIVATE KEY"

// errPrivateKey keeps a private key that was pasted in the wrong place from
// being shown.
var errPrivateKey = errors.New("this is a private key; a pinned host key is the public one, from /etc/ssh/ssh_host_*_key.pub on the node")

// parseHostKey checks a pinned host key and returns it in the form of Host:
// the type and the key as in authorized_keys, without a comment, or a
// fingerprint as "ssh-keygen -l" prints it. What cannot match any key that a
// server may show is an error now, and not a "host key changed" later.
func parseHostKey(s string) (string, error) {
	s = strings.TrimSpace(s)
	if strings.Contains(s, privateKey) {
		return "", errPrivateKey
	}
	if sum, ok := strings.CutPrefix(s, "SHA256:"); ok {
		sum = strings.TrimRight(sum, "=")
		if b, err := base64.RawStdEncoding.Strict().DecodeString(sum); err != nil || len(b) != 32 {
			return "", errors.New("the fingerprint is not SHA256: and 43 characters of base64")
		}
		return "SHA256:" + sum, nil
	}
	if strings.HasPrefix(s, "MD5:") || strings.Count(s, ":") == 15 {
		return "", errors.New("fingerprints in MD5 are not supported: use the SHA256 one of 'ssh-keygen -lf'")
	}
	fields := strings.Fields(s)
	if len(fields) < 2 {
		return "", errors.New(`a host key is "TYPE BASE64", as in "ssh-ed25519 AAAA...", or "SHA256:..."`)
	}
	kind, text := fields[0], fields[1]
	if !strings.HasPrefix(kind, "ssh-") && !strings.HasPrefix(kind, "ecdsa-") && len(fields) > 2 {
		return "", fmt.Errorf("%q is not a type of key; leave out the host name that ssh-keyscan prints before it", kind)
	}
	blob, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return "", fmt.Errorf("the %s key is not base64: %w", kind, err)
	}
	if err := checkBlob(kind, blob); err != nil {
		return "", err
	}
	return kind + " " + text, nil
}

// checkBlob checks the fields of a public key: RFC 4253 6.6 for ssh-rsa, RFC
// 5656 3.1 for ecdsa-sha2-*, RFC 8709 4 for ssh-ed25519.
func checkBlob(kind string, blob []byte) error {
	fields, ok := wireStrings(blob)
	if !ok || len(fields) == 0 {
		return fmt.Errorf("the %s key is damaged or not complete", kind)
	}
	if inner := string(fields[0]); inner != kind {
		return fmt.Errorf("the key says that it is %q, not %q", inner, kind)
	}
	valid := false
	switch kind {
	case "ssh-ed25519":
		valid = len(fields) == 2 && len(fields[1]) == 32
	case "ssh-rsa":
		const least = 1024 / 8 // shorter ones are refused by every server and client of today
		valid = len(fields) == 3 && len(fields[1]) > 0 && len(fields[2]) >= least
	case "ecdsa-sha2-nistp256":
		valid = isPoint(fields, "nistp256", 65)
	case "ecdsa-sha2-nistp384":
		valid = isPoint(fields, "nistp384", 97)
	case "ecdsa-sha2-nistp521":
		valid = isPoint(fields, "nistp521", 133)
	default:
		return fmt.Errorf("host keys of type %q are not supported: use ssh-ed25519, ecdsa-sha2-nistp256, -384, -521 or ssh-rsa", kind)
	}
	if !valid {
		return fmt.Errorf("the %s key is damaged or not complete", kind)
	}
	return nil
}

// isPoint checks the fields of an ECDSA key: type, curve and uncompressed point.
func isPoint(fields [][]byte, curve string, size int) bool {
	return len(fields) == 3 && string(fields[1]) == curve && len(fields[2]) == size && fields[2][0] == 4
}

// wireStrings takes apart a row of strings in SSH's form (RFC 4251 5): a
// length in four bytes, then that many bytes.
func wireStrings(b []byte) (fields [][]byte, ok bool) {
	for len(b) > 0 {
		if len(b) < 4 {
			return nil, false
		}
		n := uint64(binary.BigEndian.Uint32(b))
		b = b[4:]
		if n > uint64(len(b)) {
			return nil, false
		}
		fields = append(fields, b[:n])
		b = b[n:]
	}
	return fields, true
}
