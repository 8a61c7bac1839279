// Package isofs reads ISO 9660 images: it answers what a Linux node that
// mounts the image would find in it, without mounting it.
//
// # What is read
//
// The volume descriptors and directory records of ECMA-119 (ISO 9660), the
// System Use Sharing Protocol (SUSP 1.12), Rock Ridge (RRIP_1991A,
// IEEE_P1282, IEEE_1282) and Joliet. Everything else that may share the image
// is ignored: UDF, El Torito, MBR and GPT partitions, trailing bytes. The path
// table is not needed and not read.
//
// # Which tree
//
// An image may hold three sets of names. [Open] chooses as Linux does when no
// mount option says otherwise, and [Image.Names] tells the choice:
//
//   - Rock Ridge, when the root's first record carries an ER entry, whatever
//     extension the entry names;
//   - else Joliet, when there is a Joliet descriptor;
//   - else the plain names, lower case, without a closing ";1" or ".;1".
//     Without Joliet, Rock Ridge names are used even if nothing announced
//     them; [Image.Names] then says Rock Ridge if the root's first record has
//     an SP entry or any entry of Rock Ridge.
//
// An image whose Rock Ridge root is empty while it also has Joliet is read
// through Joliet. Rock Ridge and plain names are matched byte for byte, Joliet
// names without regard to the case of ASCII letters and to closing dots.
// Rock Ridge names of 254 bytes and more end before the entry that would pass
// that length. Hidden files are shown, associated files are not. Only the
// little-endian half of a number recorded in both byte orders counts. A
// directory's size is that of its own first record.
//
// A plain file or a block device without sessions shows the descriptors that
// begin at sector 16, so that is where [Open] looks; whoever has asked a drive
// where its last session begins uses [OpenSession]. Logical blocks of 512,
// 1024 and 2048 bytes are read, although Linux takes those of 512 bytes only
// with the mount option block=512.
//
// # Three answers
//
// Where Linux shrugs damage off, this package does not: "could not look" is
// never "not there". [Image.Lookup] returns a file; or an error that is
// [fs.ErrNotExist], only after every directory it asked was read whole and was
// intact; or an [*Error], which is neither yes nor no. A damaged record does
// not hide an intact one with the wanted name, but while the wanted name is
// not found, every damaged record might be the one. What only an absence needs
// to know is looked at only then: that the first two records of each directory
// agree with the way that led there, and that no directory on it has two names.
//
// # Limits
//
// Nothing is allocated because a header claims it. A lookup needs the memory
// of one read (at most 64 KiB) however large the directory; a listing needs
// the memory of its entries, which are limited, unless it is asked for in parts
// (ReadDir of an open directory, with n > 0). Directories that contain
// themselves, chains of continuation areas and paths of absurd depth end in an
// [*Error]. A hostile image can still name one directory many times in
// different places, so whoever walks an untrusted image limits the steps.
package isofs
