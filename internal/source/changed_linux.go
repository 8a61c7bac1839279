package source

import (
	"syscall"
	"time"
)

// changed is when an inode changed last.
func changed(st *syscall.Stat_t) time.Time {
	return time.Unix(int64(st.Ctim.Sec), int64(st.Ctim.Nsec)) // 32 bits each on some machines
}
