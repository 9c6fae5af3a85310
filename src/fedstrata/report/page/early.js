try { const theme = localStorage.getItem('fedstrata-theme'); if (theme === 'dark' || theme === 'light') { document.documentElement.dataset.theme = theme; } } catch (_) { /* blocked */ }
