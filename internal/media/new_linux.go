package media

// New returns a Finder for this machine.
func New(o Options) *Finder {
	o = o.withDefaults()
	if o.Uevents == nil {
		o.Uevents = uevents
	}
	return newFinder(o, host{dev: o.Dev, sys: o.Sys, mountInfo: o.MountInfo})
}
