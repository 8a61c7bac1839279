package answers

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

// TestWrittenByBbolt: whatever bbolt writes passes the check, after any mixture
// of puts and deletes in records of many sizes.
func TestWrittenByBbolt(t *testing.T) {
	if withoutRaces(t) {
		return
	}
	rounds := 150
	if testing.Short() {
		rounds = 40
	}
	r := rand.New(rand.NewPCG(1, 2))
	path := filepath.Join(t.TempDir(), "db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	names := [][]byte{[]byte("a"), []byte("b"), []byte("c")}
	for round := range rounds {
		span := []int{20, 300, 3000}[r.IntN(3)]
		err := db.Update(func(tx *bbolt.Tx) error {
			for range 1 + r.IntN(200) {
				b, err := tx.CreateBucketIfNotExists(names[r.IntN(len(names))])
				if err != nil {
					return err
				}
				key := fmt.Appendf(nil, "key %0*d", 1+r.IntN(60), r.IntN(span))
				if r.IntN(5) < 2 {
					err = b.Put(key, make([]byte, r.IntN(1500)))
				} else {
					err = b.Delete(key)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if warning, err := verify(t.Context(), f, info.Size()); err != nil || warning != "" {
			t.Fatalf("round %d: %v %s", round, err, warning)
		}
		f.Close()
	}
}
