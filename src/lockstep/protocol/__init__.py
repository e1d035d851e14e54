"""What the launcher and a rank hand to each other: the only bridges between the two worlds.

launcher:  os.environ of a rank = encode(settings, position)        environment (arithmetic, meeting_place in it)
rank:      settings, position = decode(os.environ)                  environment
both:      what can be known of a URL in the place of a path            url
rank:      warn if the script set what comes too late               late_settings
rank:      run_folder.journal(rank), .failure(rank), .evidence      run_folder
verify:    reads what ranks wrote there                             recording
"""
