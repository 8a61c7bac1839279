package health

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"sync"

	"cks-etcd/internal/reason"
)

// maxMembers bounds the lists of an answer. etcd advises seven members.
const maxMembers = 256

// A number is a uint64 in the JSON form of Protocol Buffers, a decimal string.
// A plain number is read, too.
type number uint64

// UnmarshalJSON reads the number.
func (n *number) UnmarshalJSON(b []byte) error {
	if len(b) >= 2 && b[0] == '"' && b[len(b)-1] == '"' {
		b = b[1 : len(b)-1]
	}
	v, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		return fmt.Errorf("%q is not a 64-bit number", reason.Line(string(b[:min(len(b), 40)])))
	}
	*n = number(v)
	return nil
}

// decode reads exactly one JSON object. Fields that v lacks are skipped: newer
// versions have more.
func decode(b []byte, v any) error {
	if b = bytes.TrimSpace(b); len(b) == 0 || b[0] != '{' {
		return fmt.Errorf("not a JSON object: %q", reason.Line(string(b[:min(len(b), 60)])))
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(v); err != nil {
		return errors.New(reason.Line(err.Error()))
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows the JSON object")
	}
	return nil
}

// header is etcdserverpb.ResponseHeader.
type header struct {
	ClusterID number `json:"cluster_id"`
	MemberID  number `json:"member_id"`
}

// versionForm is what a version looks like.
var versionForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}([-+.][0-9A-Za-z.+-]{1,64})?$`)
})

// parseVersion reads the answer of /version.
func parseVersion(b []byte) (*Version, error) {
	var a struct {
		Server  string `json:"etcdserver"`
		Cluster string `json:"etcdcluster"`
	}
	if err := decode(b, &a); err != nil {
		return nil, err
	}
	if !versionForm().MatchString(a.Server) {
		return nil, fmt.Errorf("it says the version %q", reason.Line(a.Server))
	}
	return &Version{Server: a.Server, Cluster: reason.Line(a.Cluster)}, nil
}

// parseHealth reads the answer of /health: {"health":"true","reason":""}.
// etcd before 3.3 wrote the truth value bare.
func parseHealth(b []byte) (*bool, string, error) {
	var a struct {
		Health json.RawMessage `json:"health"`
		Reason string          `json:"reason"`
	}
	if err := decode(b, &a); err != nil {
		return nil, "", err
	}
	var well bool
	switch string(a.Health) {
	case `"true"`, `true`:
		well = true
	case `"false"`, `false`:
	default:
		return nil, "", fmt.Errorf("health is %q", reason.Line(string(a.Health[:min(len(a.Health), 40)])))
	}
	return &well, reason.Line(a.Reason), nil
}

// parseStatus reads etcdserverpb.StatusResponse.
func parseStatus(b []byte) (*Status, error) {
	var a struct {
		Header    header   `json:"header"`
		DBSize    number   `json:"dbSize"`
		Leader    number   `json:"leader"`
		RaftIndex number   `json:"raftIndex"`
		RaftTerm  number   `json:"raftTerm"`
		Errors    []string `json:"errors"`
		IsLearner bool     `json:"isLearner"`
	}
	if err := decode(b, &a); err != nil {
		return nil, err
	}
	if a.Header.ClusterID == 0 || a.Header.MemberID == 0 {
		return nil, errors.New("it names no cluster or no member")
	}
	if len(a.Errors) > maxMembers {
		return nil, fmt.Errorf("it lists %d errors", len(a.Errors))
	}
	return &Status{
		ClusterID: uint64(a.Header.ClusterID), MemberID: uint64(a.Header.MemberID),
		Leader: uint64(a.Leader), RaftTerm: uint64(a.RaftTerm), RaftIndex: uint64(a.RaftIndex),
		IsLearner: a.IsLearner, DBSize: uint64(a.DBSize), Errors: lines(a.Errors),
	}, nil
}

// parseMembers reads etcdserverpb.MemberListResponse.
func parseMembers(b []byte) ([]Member, error) {
	var a struct {
		Members []struct {
			ID         number   `json:"ID"`
			Name       string   `json:"name"`
			PeerURLs   []string `json:"peerURLs"`
			ClientURLs []string `json:"clientURLs"`
			IsLearner  bool     `json:"isLearner"`
		} `json:"members"`
	}
	if err := decode(b, &a); err != nil {
		return nil, err
	}
	if n := len(a.Members); n == 0 || n > maxMembers {
		return nil, fmt.Errorf("it lists %d members", n)
	}
	out := make([]Member, 0, len(a.Members))
	seen := make(map[uint64]bool, len(a.Members))
	for _, m := range a.Members {
		id := uint64(m.ID)
		if id == 0 || seen[id] || len(m.PeerURLs) > maxMembers || len(m.ClientURLs) > maxMembers {
			return nil, fmt.Errorf("it lists member %x without an ID, twice, or with too many addresses", id)
		}
		seen[id] = true
		out = append(out, Member{ID: id, Name: reason.Line(m.Name), PeerURLs: lines(m.PeerURLs), ClientURLs: lines(m.ClientURLs), IsLearner: m.IsLearner})
	}
	return out, nil
}

// parseAlarms reads etcdserverpb.AlarmResponse. The result is not nil when
// there is no alarm.
func parseAlarms(b []byte) ([]Alarm, error) {
	var a struct {
		Header *header `json:"header"`
		Alarms []struct {
			MemberID number          `json:"memberID"`
			Alarm    json.RawMessage `json:"alarm"`
		} `json:"alarms"`
	}
	if err := decode(b, &a); err != nil {
		return nil, err
	}
	if a.Header == nil {
		return nil, errors.New("it has no header")
	}
	if len(a.Alarms) > maxMembers {
		return nil, fmt.Errorf("it lists %d alarms", len(a.Alarms))
	}
	out := make([]Alarm, 0, len(a.Alarms))
	for _, x := range a.Alarms {
		kind := string(x.Alarm) // the gateway writes a number for a value it has no name of
		var s string
		if json.Unmarshal(x.Alarm, &s) == nil {
			kind = s
		}
		kind = reason.Line(kind)
		if kind == "" || kind == "NONE" { // the zero value
			continue
		}
		out = append(out, Alarm{MemberID: uint64(x.MemberID), Type: kind})
	}
	return out, nil
}

// gatewayError returns what an answer other than 200 says, one line: the
// message of the gateway's JSON, or the text.
func gatewayError(b []byte) string {
	var a struct {
		Message string `json:"message"`
		Error   string `json:"error"`
	}
	if json.Unmarshal(b, &a) == nil && a.Message+a.Error != "" {
		if a.Message != "" {
			return reason.Line(a.Message)
		}
		return reason.Line(a.Error)
	}
	return reason.Line(string(b[:min(len(b), 200)]))
}

// lines makes every string one printable line.
func lines(in []string) []string {
	out := make([]string, 0, len(in))
	for _, s := range in {
		out = append(out, reason.Line(s))
	}
	return out
}
