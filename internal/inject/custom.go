package inject

// addTemplates adds the templates of the Values.
func (i *Injector) addTemplates() error { return nil }
