package xds

// A change must cost nothing for the streams and views that it does not
// concern, so both are found by what they read.

// index finds sets of values by key.
type index[K, V comparable] map[K]map[V]struct{}

func (x index[K, V]) add(k K, v V) {
	if x[k] == nil {
		x[k] = make(map[V]struct{})
	}
	x[k][v] = struct{}{}
}

func (x index[K, V]) remove(k K, v V) {
	if delete(x[k], v); len(x[k]) == 0 {
		delete(x, k)
	}
}
